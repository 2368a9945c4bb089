#include <algorithm>
#include <cstring>

#include "casync/error.hpp"
#include "codec/cpu/codecs.hpp"

/// `parts`: elements of payloads that merge. It is `none`, but that a sum of int8 stays within -127 and 127 after each
/// addition (Merge::saturating).
namespace casync::codec {
namespace {

constexpr int kMost = 127;

class Parts final : public Codec {
 public:
  Parts() {
    info_.spec = "parts";
    info_.rounds = {{Aggregation::reduce}};
    info_.identity = true;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType dtype, const Range& range, int /*round*/) const override {
    return static_cast<std::size_t>(range.size()) * size_of(dtype);
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      if (segment.dtype == DType::int8 && segment.op == ReduceOp::sum)
        saturate(segment);
      else
        none_->run({&segment, 1});
    }
  }

 private:
  static void saturate(Segment& segment) {
    segment.nonfinite = false;
    const auto count = static_cast<std::size_t>(segment.range.size());
    if (count == 0) return;
    CASYNC_CHECK(segment.raw_out != nullptr && segment.payload.empty(), "parts: sums are raw");
    auto* const to = static_cast<std::int8_t*>(segment.raw_out);
    const auto of = [&](std::size_t s) { return static_cast<const std::int8_t*>(segment.sources[s].data); };
    if (of(0) != to) std::memcpy(to, of(0), count);
    for (std::size_t s = 1; s < segment.sources.size(); ++s) {
      const std::int8_t* const more = of(s);
      for (std::size_t i = 0; i < count; ++i)
        to[i] = static_cast<std::int8_t>(std::clamp(to[i] + more[i], -kMost, kMost));
    }
  }

  CodecInfo info_;
  CodecPointer none_ = make_codec("none");
};

}  // namespace

CodecPointer make_parts(Spec& spec) {
  spec.finish("");
  return std::make_shared<Parts>();
}

}  // namespace casync::codec
