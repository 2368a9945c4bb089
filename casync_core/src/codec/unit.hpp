#pragma once

#include <cstddef>
#include <cstdint>

/// A unit of a gradient as generated code is given it and gives it back, on the CPU and on a device. NVRTC compiles
/// this header too, so it includes nothing but fixed-width integers.
namespace casync::codec {

/// The words of the Philox counter and key that are common to one unit.
struct RandomKey {
  std::uint64_t name_hash = 0;
  std::uint32_t sequence = 0;
  std::uint32_t round = 0;
  std::uint32_t stream = 0;      ///< rank and role
  std::uint64_t coordinate = 0;  ///< of the unit's first element; a multiple of 128
};

/// The value of a parameter of a generated codec, by the type that its file declares.
union Parameter {
  float real;
  std::int32_t whole;
};

/// What generated code reads besides arrays; of one unit, or of a whole gradient.
struct Facts {
  const Parameter* parameters = nullptr;  ///< in the file's order
  float* const* state = nullptr;  ///< in the file's order; what has a value per element from the unit's first one on
  std::int64_t n = 0;             ///< elements
  std::int32_t rows = 0;
  std::int32_t cols = 0;
  std::int32_t step = 0;
  std::int32_t world = 1;
  std::int32_t rank = 0;
  std::int32_t name = 0;  ///< the low bits of the hash of the gradient's name
  float lr = 0;
  float momentum = 0;
  bool nesterov = false;
  std::int32_t merged = 1;  ///< contributions that a payload is made of which is decoded
  RandomKey key;
};

/// What encodes one unit of a generated codec. x = accumulated + residual (or accumulated alone), y = x * mid; the
/// payload of y goes to `payload`, and x - D / mid to `residual`, if there is one.
struct UnitJob {
  Facts facts;
  const float* accumulated = nullptr;
  float* residual = nullptr;
  float mid = 1.0F;
  std::byte* payload = nullptr;
  std::byte* payload_end = nullptr;
  const std::byte* received = nullptr;  ///< the merged payload of the round before
  std::byte* scratch = nullptr;
};

struct EncodedUnit {
  std::int64_t bytes = 0;  ///< -1: more than the bound that the file states
  bool nonfinite = false;
  bool settled = false;  ///< the residual is what was not sent; otherwise decoding has to find that
};

/// What decodes one unit. With `keep` states that decode assigns are assigned.
struct DecodeJob {
  Facts facts = {};
  const std::byte* payload = nullptr;
  const std::byte* payload_end = nullptr;  ///< of all that follows, not of the unit alone
  const std::byte* received = nullptr;
  std::byte* scratch = nullptr;
  float* out = nullptr;
  const float* accumulated = nullptr;  ///< what is added to `out` where D is taken off
  float divisor = 1.0F;
  bool keep = false;
  bool* nonfinite =
      nullptr;  ///< set if an element that was delivered, not zeros about it, is NaN or Inf then; may be null
};
enum class Into : std::uint8_t {
  set,       ///< out = D
  add,       ///< out = out + D
  lose,      ///< out = accumulated + out - D / divisor: what encoding lost
  subtract,  ///< out = out - D / divisor: the same where `out` is that sum already
};

}  // namespace casync::codec
