#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "casync/codec.hpp"
#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/unit_layout.hpp"
#include "codec/spec.hpp"

/// Codecs generated from CompLL: what a file says becomes data here and inner loops in a kernel file; everything
/// between is written once: generated_quantiser.cc for codes of one width over short units, generated_units.cc for
/// units of any program, generated_rounds.cc for payloads that are reduced without being decoded.
namespace casync::codec {

namespace cuda {
struct DeviceKernels;
}

/// A step as programs see it, in an int32. Those that it cannot count are its last one.
constexpr std::int32_t step_of(std::uint32_t sequence) {
  return static_cast<std::int32_t>(std::min<std::uint32_t>(sequence, std::numeric_limits<std::int32_t>::max()));
}

struct GeneratedParameter {
  std::string_view name;
  bool real = false;
  double standard = 0;
  std::span<const double> accepted;  ///< values, or with `interval` both ends; empty: any
  bool interval = false;
};

struct GeneratedState {
  std::string_view name;
  bool per_element = false;
  bool shared = false;
  bool pending = false;
};

struct GeneratedCodec {
  std::string_view name;
  std::span<const Round> rounds;
  Feedback feedback = Feedback::none;
  UnitRule unit;       ///< where neither the parameters nor the shape decide it
  bool whole = false;  ///< the unit is the gradient
  bool fixed_size = true;
  bool momentum = false;
  std::int64_t header_bytes = 0;  ///< of a quantiser
  std::span<const int> bits;      ///< of a quantiser: of a code, by choice
  std::span<const GeneratedParameter> parameters;
  std::span<const GeneratedState> states;
  int choices = 1;
  std::array<const UnitKernels*, 3> kernels;    ///< by Isa, one for each choice of widths
  const cuda::DeviceKernels* device = nullptr;  ///< one for each choice of widths
};

/// The files of the library that were translated when this was built. Defined in generated code.
std::span<const GeneratedCodec> generated_codecs();

/// Takes the parameters from the spec. Throws InvalidArgument for what the file does not accept.
std::shared_ptr<const Codec> make_generated(const GeneratedCodec& codec, Spec& spec);

}  // namespace casync::codec
