#include <iterator>
#include <utility>

#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/decayed.hpp"
#include "codec/cpu/generated.hpp"

/// A unit's payload is a header of scalars and one code per element.
namespace casync::codec {
namespace {

class Quantiser final : public Generated<BlockCodec> {
 public:
  using Generated::Generated;

  std::int64_t cut(const Shape& shape, std::int64_t element) const override { return layout(shape).floor(element); }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const UnitLayout units = layout(shape);
    return static_cast<std::size_t>(units.bytes_before(range.end) - units.bytes_before(range.begin));
  }

 protected:
  bool fills_cache_lines(const Shape& shape) const override { return layout(shape).multiples_of(16); }

  Encoded encode(const BlockJob& job, const float* accumulated, float* residual, std::byte* payload) const override {
    const UnitLayout units = layout(job.segment.shape);
    const auto encode_unit = instance_.kernels().encode;
    UnitJob unit{.facts = facts_of(instance_, job.segment),
                 .accumulated = accumulated,
                 .mid = job.segment.mid,
                 .payload = payload};
    bool nonfinite = false;
    for (std::int64_t begin = job.range.begin; begin < job.range.end; begin += unit.facts.n) {
      unit.facts.n = units.end_of(begin) - begin;
      unit.facts.key.coordinate = static_cast<std::uint64_t>(begin);
      const Decayed left(info_.feedback_decay, residual, unit.facts.n, UnitScratch::of_thread());
      unit.residual = left.values();
      const bool lost = encode_unit(unit);
      if (!lost) left.leave();
      nonfinite |= lost;
      unit.payload += units.bytes_of(unit.facts.n);
      unit.accumulated += unit.facts.n;
      if (residual != nullptr) residual += unit.facts.n;
    }
    return {.bytes = static_cast<std::size_t>(unit.payload - payload), .nonfinite = nonfinite};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const UnitLayout units = layout(job.segment.shape);
    const MergePayloads merge_unit = instance_.kernels().merge;
    const Facts facts = facts_of(instance_, job.segment);
    for (MergeSource& source : sources) source.facts = &facts;
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
  std::vector<std::int64_t> begins(const Shape& shape, const Range& range) const override {
    const UnitLayout units = layout(shape);
    std::vector<std::int64_t> begins{range.begin};
    while (begins.back() < range.end) begins.push_back(units.end_of(begins.back()));
    return begins;
  }
  std::int64_t slot_bytes(const Shape& shape, std::int64_t elements, int /*round*/) const override {
    return layout(shape).bytes_of(elements);
  }

  UnitLayout layout(const Shape& shape) const {
    return {instance_.codec.unit, instance_.codec.header_bytes, instance_.codec.bits[instance_.choice], shape};
  }
};

}  // namespace

std::shared_ptr<const Codec> make_quantiser(Instance instance) {
  return std::make_shared<Quantiser>(std::move(instance));
}

}  // namespace casync::codec
