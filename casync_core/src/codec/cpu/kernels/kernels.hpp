#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/unit.hpp"

/// The inner loops of the codecs, one table per instruction set. Every entry gives the same bits in every table:
/// sums run in 16 lanes (element i in lane i mod 16) over blocks of 1024 elements, lanes are folded 8, 4, 2, 1, blocks
/// added in order. No pointer needs any alignment. `out` may equal an input of the same element size, never overlap it
/// otherwise. Entries that return bool say whether something they produced is NaN or Inf.
namespace casync::codec {

/// One contribution to a sum: raw float32 values times `factor`, or a payload, which generated code reads with `facts`.
struct MergeSource {
  const float* raw = nullptr;
  float factor = 1.0F;
  const std::byte* payload = nullptr;
  const std::byte* payload_end = nullptr;
  const Facts* facts = nullptr;
};

/// out = [addend +] factor * src, converted to float32; `addend` may be null.
using LoadRaw = bool (*)(const void* src, float factor, const float* addend, float* out, std::int64_t n);
/// dst = (src * first) * second, rounded to nearest even. `stream`: the stores bypass the caches, call fence() at the
/// end.
using StoreRaw = bool (*)(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);
/// out = the sum of the sources, in order, over one unit of n elements; count >= 1. `stream` as above, and then `out`
/// is aligned to 64 bytes.
using MergePayloads = bool (*)(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool stream);

/// What is generated from one CompLL file for one choice of the parameters that decide widths. A quantiser has
/// `encode` and `merge`, anything else `encode_unit` and `decode_unit`; what a file has no use for is null.
///
/// An encoder says whether y, or what was to be sent, is not finite; then the payload decodes to NaN and residual and
/// states are as they were.
struct UnitKernels {
  bool (*encode)(const UnitJob& job) = nullptr;
  MergePayloads merge = nullptr;

  EncodedUnit (*encode_unit)(const UnitJob& job, int round) = nullptr;
  /// Returns the bytes that were the unit's, -1 if they cannot be this codec's.
  std::int64_t (*decode_unit)(const DecodeJob& job, Into into) = nullptr;
  std::int64_t (*scratch_bytes)(const Facts& facts) = nullptr;

  float (*propose)(const UnitJob& job) = nullptr;  ///< of the whole gradient: its part of what the ranks agree on
  std::int64_t (*propose_scratch)(const Facts& facts) = nullptr;
  void (*agree)(const Facts& facts, float received) = nullptr;

  bool (*fits)(const Facts& facts) = nullptr;          ///< whether the parameters give these widths
  bool (*applies)(const Facts& facts) = nullptr;       ///< whether a gradient is compressed in this step
  std::int64_t (*unit)(const Facts& facts) = nullptr;  ///< elements of a unit; 0: rows, or the whole gradient
  std::int64_t (*bound)(const Facts& facts, int round) = nullptr;     ///< most payload bytes of a unit of n elements
  std::int64_t (*elements)(const Facts& facts, int state) = nullptr;  ///< of a state
  float (*start)(const Facts& facts, int state, std::int64_t element) = nullptr;  ///< the first value of one of them
  bool sparse = false;  ///< decoding touches what was sent alone, but for zeros before with Into::set
};

struct Kernels {
  LoadRaw load_raw[4];  ///< by DType: float32, float16, bfloat16, float64
  StoreRaw store_raw[4];
  StoreRaw divide_raw[3];      ///< divides by the first factor: float32, float16, bfloat16
  MergePayloads merge_raw[3];  ///< payloads are elements of float32, float16, bfloat16

  /// Orders non-temporal stores before whatever tells another thread that the data is there.
  void (*fence)();
};

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

/// How this processor reads long arrays fastest (docs/internals/codec.md).
enum class Reading : std::uint8_t {
  in_order,     ///< from front to back
  fetched,      ///< from front to back, fetched a page ahead by software
  side_by_side  ///< four 4 KiB pages side by side, and fetched ahead
};
Reading reading();
void force_reading(Reading chosen);  ///< for tests, as force_isa

/// The table of current_isa().
const Kernels& kernels();

}  // namespace casync::codec
