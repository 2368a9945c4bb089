#include <array>
#include <string>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "codec/cpu/codecs.hpp"
#include "codec/cpu/generated_codec.hpp"
#include "codec/plugin.hpp"
#include "codec/spec.hpp"

namespace casync {
namespace {

struct Entry {
  std::string_view name;
  codec::CodecPointer (*make)(codec::Spec&);
};

constexpr std::size_t kPublic = 3;
constexpr std::array kEntries{
    Entry{"none", codec::make_none},
    Entry{"fp16", codec::make_fp16},
    Entry{"bf16", codec::make_bf16},
    Entry{"nonzeros", codec::make_nonzeros},
    Entry{"parts", codec::make_parts},
    Entry{"hold", codec::make_hold},
    Entry{"test_topk", codec::make_test_topk},
    Entry{"test_tworound", codec::make_test_two_round},
    Entry{"test_state", codec::make_test_state},
    Entry{"test_lowrank", codec::make_test_low_rank},
};

}  // namespace

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kPublic; ++i) names.emplace_back(kEntries[i].name);
  for (const codec::GeneratedCodec& generated : codec::generated_codecs()) names.emplace_back(generated.name);
  return names;
}

std::shared_ptr<const Codec> make_codec(std::string_view text) {
  codec::Spec spec = codec::parse_spec(text);
  for (const Entry& entry : kEntries)
    if (entry.name == spec.name()) return entry.make(spec);
  if (const codec::GeneratedCodec* generated = codec::find_generated(spec.name()))
    return codec::make_generated(*generated, spec);
  std::string known;
  for (const std::string& name : codec_names()) known += (known.empty() ? "" : ", ") + name;
  const bool from_file = spec.name().find('@') != std::string::npos;  // casync/compll/plugin.py
  throw InvalidArgument(detail::concat("codec '", spec.name(), "' is not known; known: ", known),
                        {.kind = from_file ? ErrorKind::unloaded_codec : ErrorKind::invalid_argument});
}

}  // namespace casync
