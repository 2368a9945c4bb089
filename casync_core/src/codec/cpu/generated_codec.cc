#include "codec/cpu/generated_codec.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"

namespace casync::codec {
namespace {

class Quantiser final : public BlockCodec {
 public:
  Quantiser(const GeneratedCodec& codec, std::size_t choice) : codec_(codec), choice_(choice) {
    info_.spec = std::string(codec.name);
    if (!codec.parameter.empty())
      info_.spec = detail::concat(codec.name, '(', codec.parameter, '=', codec.choices[choice].value, ')');
    info_.rounds = {Aggregation::reencode};
    info_.feedback = codec.feedback;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override { return layout(shape).floor(element); }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const UnitLayout units = layout(shape);
    return static_cast<std::size_t>(units.bytes_before(range.end) - units.bytes_before(range.begin));
  }

 protected:
  bool fills_cache_lines(const Shape& shape) const override { return layout(shape).multiples_of(16); }

  Encoded encode(const BlockJob& job, const float* accumulated, float* residual, std::byte* payload) const override {
    const Segment& segment = job.segment;
    const UnitLayout units = layout(segment.shape);
    const auto encode_unit = kernels_now().encode;
    UnitJob unit{
        .accumulated = accumulated,
        .residual = residual,
        .mid = segment.mid,
        .payload = payload,
        .key = {.name_hash = segment.name_hash,
                .sequence = segment.sequence,
                .round = segment.round,
                .stream = static_cast<std::uint32_t>(segment.rank) << 1 | static_cast<std::uint32_t>(segment.role)}};
    bool nonfinite = false;
    for (std::int64_t begin = job.range.begin; begin < job.range.end; begin += unit.n) {
      unit.n = units.end_of(begin) - begin;
      unit.key.coordinate = static_cast<std::uint64_t>(begin);
      nonfinite |= encode_unit(unit);
      unit.payload += units.bytes_of(unit.n);
      unit.accumulated += unit.n;
      if (residual != nullptr) unit.residual += unit.n;
    }
    return {.bytes = static_cast<std::size_t>(unit.payload - payload), .nonfinite = nonfinite};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const UnitLayout units = layout(job.segment.shape);
    const Merge merge_unit = kernels_now().merge;
    bool nonfinite = false;
    for (std::int64_t begin = job.range.begin; begin < job.range.end;) {
      const std::int64_t n = units.end_of(begin) - begin;
      nonfinite |= merge_unit(sources.data(), std::ssize(sources), out, n, stream);
      advance(sources, n, units.bytes_of(n));
      out += n;
      begin += n;
    }
    return nonfinite;
  }

 private:
  UnitLayout layout(const Shape& shape) const {
    return {codec_.unit, codec_.header_bytes, codec_.choices[choice_].bits, shape};
  }
  const UnitKernels& kernels_now() const { return codec_.kernels[static_cast<std::size_t>(current_isa())][choice_]; }

  const GeneratedCodec& codec_;
  std::size_t choice_;
  CodecInfo info_;
};

/// "2, 4 or 8"
std::string list(std::span<const WidthChoice> choices) {
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 < choices.size() ? ", " : " or ";
    text += std::to_string(choices[i].value);
  }
  return text;
}

}  // namespace

std::shared_ptr<const Codec> make_generated(const GeneratedCodec& codec, Spec& spec) {
  if (codec.parameter.empty()) {
    spec.finish("");
    return std::make_shared<Quantiser>(codec, 0);
  }
  const int value = spec.take_int(codec.parameter, codec.standard);
  spec.finish(detail::concat(codec.parameter, " (", list(codec.choices), ")"));
  const auto at = std::ranges::find(codec.choices, value, &WidthChoice::value);
  if (at == codec.choices.end()) spec.refuse(detail::concat(codec.parameter, " must be ", list(codec.choices)));
  return std::make_shared<Quantiser>(codec, static_cast<std::size_t>(at - codec.choices.begin()));
}

}  // namespace casync::codec
