#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"
#include "codec/cpu/kernels/kernels.hpp"

/// `hold`: sends nothing. The gradient joins the residual, and the result is zero. A plan that synchronises a gradient
/// in some of its steps computes with it in the others (GradientPlan::period). What is not finite is left out: it would
/// stay in the residual for ever.
namespace casync::codec {
namespace {

constexpr std::int64_t kAtATime = 4096;

class Hold final : public Codec {
 public:
  Hold() {
    info_.spec = "hold";
    info_.rounds = {{Aggregation::reencode}};
    info_.feedback = Feedback::wrapper;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& /*range*/, int /*round*/) const override {
    return 0;
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      segment.payload_bytes = 0;
      segment.nonfinite = false;
      if (segment.range.size() == 0) continue;
      CASYNC_CHECK(segment.sources.size() == 1 && is_floating(segment.dtype), info_.spec,
                   " takes one source of floats");
      const Source& source = segment.sources[0];
      if (source.raw && segment.residual != nullptr) keep(segment, static_cast<const std::byte*>(source.data));
      std::memset(segment.raw_out, 0, static_cast<std::size_t>(segment.range.size()) * size_of(segment.dtype));
    }
  }

 private:
  static void keep(Segment& segment, const std::byte* elements) {
    const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
    std::array<float, kAtATime> values;
    for (std::int64_t begin = 0; begin < segment.range.size(); begin += kAtATime) {
      const std::int64_t n = std::min(kAtATime, segment.range.size() - begin);
      const std::byte* const from = elements + static_cast<std::size_t>(begin) * size_of(segment.dtype);
      if (load(from, segment.pre, nullptr, values.data(), n)) {
        segment.nonfinite = true;
        for (float& value : values) value = std::isfinite(value) ? value : 0.0F;
      }
      float* const residual = segment.residual + begin;
      for (std::int64_t i = 0; i < n; ++i) residual[i] += values[static_cast<std::size_t>(i)];
    }
  }

  CodecInfo info_;
};

}  // namespace

CodecPointer make_hold(Spec& spec) {
  spec.finish("");
  return std::make_shared<Hold>();
}

}  // namespace casync::codec
