#pragma once

#include <array>
#include <span>
#include <string_view>

#include "casync/codec.hpp"
#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/unit_layout.hpp"
#include "codec/spec.hpp"

/// Codecs generated from CompLL: what a file says becomes data here and inner loops in a kernel file; everything
/// between is written once, in generated_codec.cc. Today a generated codec is a quantiser: a unit's payload is a header
/// of scalars and one code per element.
namespace casync::codec {

/// One value of the parameter that decides the width of a code, with that width.
struct WidthChoice {
  int value = 0;
  int bits = 0;
};

struct GeneratedCodec {
  std::string_view name;
  Feedback feedback = Feedback::none;
  UnitRule unit;
  int header_bytes = 0;
  std::string_view parameter;  ///< empty: there is one choice
  int standard = 0;            ///< the parameter's default
  std::span<const WidthChoice> choices;
  std::array<const UnitKernels*, 3> kernels;  ///< by Isa, one for each choice
};

/// The files of the library that were translated when this was built. Defined in generated code.
std::span<const GeneratedCodec> generated_codecs();

/// Takes the parameter from the spec. Throws InvalidArgument for what the file does not accept.
std::shared_ptr<const Codec> make_generated(const GeneratedCodec& codec, Spec& spec);

}  // namespace casync::codec
