#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/decayed.hpp"
#include "codec/cpu/generated.hpp"
#include "codec/cpu/unit_scratch.hpp"

/// Payloads that are merged without being decoded, over the whole gradient, in one round or several: what a round's
/// payloads become is what the next one begins with.
namespace casync::codec {
namespace {

class Rounds final : public Generated<Codec> {
 public:
  using Generated::Generated;

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : 0;
  }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int round) const override {
    if (range.size() == 0) return 0;
    return static_cast<std::size_t>(instance_.kernels().bound(instance_.facts(shape), round));
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      CASYNC_CHECK(segment.op == ReduceOp::sum && is_floating(segment.dtype), info_.spec, " cannot do ",
                   name_of(segment.op), " of ", name_of(segment.dtype));
      segment.payload_bytes = 0;
      segment.nonfinite = false;
      if (segment.range.size() == 0) continue;
      CASYNC_CHECK(!segment.sources.empty(), info_.spec, ": no sources");
      if (segment.sources[0].raw) {
        CASYNC_CHECK(!segment.payload.empty(), info_.spec, ": raw values are encoded");
        encode(segment);
      } else {
        reduce(segment);
      }
    }
  }

 private:
  std::vector<std::int64_t> begins(const Shape& /*shape*/, const Range& range) const override {
    return {range.begin, range.end};
  }
  std::int64_t slot_bytes(const Shape& shape, std::int64_t /*elements*/, int round) const override {
    return instance_.kernels().bound(instance_.facts(shape), round);
  }

  const std::byte* received(const Segment& segment) const {
    if (segment.round == 0) return nullptr;
    const std::size_t expected = bound(segment.shape, segment.dtype, segment.range, segment.round - 1);
    if (segment.previous.size() != expected) throw_corrupt(info_, segment, segment.previous.size(), expected);
    return segment.previous.data();
  }

  void encode(Segment& segment) const {
    UnitScratch& scratch = UnitScratch::of_thread();
    const Facts facts = facts_of(instance_, segment);
    const auto* values = static_cast<const float*>(segment.sources[0].data);
    if (segment.dtype != DType::float32 || segment.pre != 1.0F || segment.sources.size() > 1) {
      float* const sum = scratch.values_for(facts.n);
      const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
      for (const Source& source : segment.sources) {
        CASYNC_CHECK(source.raw, info_.spec, ": raw values are encoded without payloads");
        load(source.data, segment.pre, values == sum ? sum : nullptr, sum, facts.n);
        values = sum;
      }
    }
    const Decayed residual(info_.feedback_decay, segment.residual, facts.n, scratch);
    const UnitJob job{.facts = facts,
                      .accumulated = values,
                      .residual = residual.values(),
                      .mid = segment.mid,
                      .payload = segment.payload.data(),
                      .payload_end = segment.payload.data() + segment.payload.size(),
                      .received = received(segment),
                      .scratch = scratch.arrays_for(instance_.kernels().scratch_bytes(facts))};
    const EncodedUnit encoded = instance_.kernels().encode_unit(job, segment.round);
    CASYNC_CHECK(encoded.bytes >= 0, info_.spec, ": a payload longer than its bound");
    segment.payload_bytes = static_cast<std::size_t>(encoded.bytes);
    segment.nonfinite = encoded.nonfinite;
    const bool last = segment.round + std::size_t{1} == info_.rounds.size();
    if (segment.residual == nullptr || !last || encoded.nonfinite || !finite_before(segment)) return;
    if (!encoded.settled)
      decode(segment, facts, segment.payload.first(segment.payload_bytes), residual.values(), Into::lose,
             {.accumulated = values});
    residual.leave();
  }

  /// The payloads merged in order: into a payload, or decoded.
  void reduce(Segment& segment) const {
    const std::size_t bytes = segment.sources[0].bytes;
    static thread_local std::vector<Source> payloads;
    payloads.clear();
    for (const Source& source : segment.sources) {
      CASYNC_CHECK(!source.raw && source.bytes == bytes, info_.spec, ": payloads of one length");
      payloads.push_back({source.data, bytes, true});
    }
    static thread_local std::vector<std::byte> merged;
    merged.resize(bytes);
    const Round& round = info_.rounds[segment.round];
    const auto elements = static_cast<std::int64_t>(bytes / size_of(round.element));
    const auto contributions = static_cast<float>(round.merge == Merge::mean ? payloads.size() : 1);
    Segment merge{.shape = {elements, 1}, .dtype = round.element, .range = {0, elements}, .sources = payloads};
    merge.op = op_of(round.merge);
    merge.mid = 1.0F / contributions;
    merge.raw_out = merged.data();
    parts_->run({&merge, 1});
    segment.nonfinite = merge.nonfinite;
    if (!segment.payload.empty()) {
      std::ranges::copy(merged, segment.payload.begin());
      segment.payload_bytes = bytes;
    }
    if (segment.raw_out != nullptr) deliver(segment, merged);
  }

  void deliver(Segment& segment, std::span<const std::byte> payload) const {
    UnitScratch& scratch = UnitScratch::of_thread();
    Facts facts = facts_of(instance_, segment);
    facts.merged = facts.world;
    const bool in_place = segment.dtype == DType::float32 && segment.mid == 1.0F && segment.post == 1.0F;
    float* const values = in_place ? static_cast<float*>(segment.raw_out) : scratch.values_for(facts.n);
    decode(segment, facts, payload, values, Into::set,
           {.keep = !segment.nonfinite && finite_before(segment), .nonfinite = &segment.nonfinite});
    if (in_place) return;
    const auto store = kernels().store_raw[static_cast<std::size_t>(segment.dtype)];
    segment.nonfinite |= store(values, segment.mid, segment.post, segment.raw_out, facts.n, false);
  }

  void decode(const Segment& segment, const Facts& facts, std::span<const std::byte> payload, float* out, Into into,
              DecodeJob job) const {
    job.facts = facts;
    job.payload = payload.data();
    job.payload_end = payload.data() + payload.size();
    job.received = received(segment);
    job.scratch = UnitScratch::of_thread().arrays_for(instance_.kernels().scratch_bytes(facts));
    job.out = out;
    job.divisor = segment.mid;
    const std::int64_t used = instance_.kernels().decode_unit(job, into);
    if (used != static_cast<std::int64_t>(payload.size()))
      throw_corrupt(info_, segment, payload.size(), static_cast<std::size_t>(std::max<std::int64_t>(used, 0)));
  }

  /// What was received of the round before.
  bool finite_before(const Segment& segment) const {
    if (segment.round == 0) return true;
    switch (info_.rounds[segment.round - std::size_t{1}].element) {
      case DType::float16:
        return finite<std::uint16_t, 0x7c00>(segment.previous);
      case DType::bfloat16:
        return finite<std::uint16_t, 0x7f80>(segment.previous);
      case DType::int8:
        return true;
      default:
        return finite<std::uint32_t, 0x7f800000>(segment.previous);
    }
  }

  /// The largest exponent, of bits as integers: that is done with whole vectors, unlike to look whether to go on.
  template <typename Bits, Bits kInfinity>
  static bool finite(std::span<const std::byte> floats) {
    Bits largest = 0;
    for (std::size_t at = 0; at + sizeof(Bits) <= floats.size(); at += sizeof(Bits)) {
      Bits bits = 0;
      std::memcpy(&bits, floats.data() + at, sizeof bits);
      largest = std::max(largest, static_cast<Bits>(bits & kInfinity));
    }
    return largest < kInfinity;
  }

  std::shared_ptr<const Codec> parts_ = make_codec("parts");
};

}  // namespace

std::shared_ptr<const Codec> make_rounds(Instance instance) { return std::make_shared<Rounds>(std::move(instance)); }

}  // namespace casync::codec
