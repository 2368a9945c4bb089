#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `test_topk(ratio=0.01)`: stands for the codecs whose payloads are gathered and vary in size. Units of 2^14 elements;
/// each sends its k = max(1, ceil(ratio * n)) largest magnitudes, ties to the lower index, zeros left out:
///   count, then count indices within the unit in ascending order, then count float32 values
/// A unit with NaN or Inf sends the count kNonfinite and nothing else. Scalar code: it is for tests of the runtime.
namespace casync::codec {
namespace {

constexpr std::int64_t kUnit = 16384;
constexpr std::uint32_t kNonfinite = 0xffffffffU;

class TestTopk final : public BlockCodec {
 public:
  explicit TestTopk(double ratio) : ratio_(ratio) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof text, ratio).ptr;
    info_.spec = detail::concat("test_topk(ratio=", std::string_view(text, static_cast<std::size_t>(end - text)), ")");
    info_.rounds = {{Aggregation::gather}};
    info_.feedback = Feedback::wrapper;
    info_.fixed_size = false;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : element / kUnit * kUnit;
  }

  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const std::int64_t units = range.size() / kUnit;
    const std::int64_t rest = range.size() % kUnit;
    return static_cast<std::size_t>(units) * (4 + 8 * kept(kUnit)) + (rest > 0 ? 4 + 8 * kept(rest) : 0);
  }

 protected:
  std::int64_t block() const override { return kUnit; }  // so a block is one unit

  Encoded encode(const BlockJob& job, const float* accumulated, float* residual, std::byte* payload) const override {
    static thread_local std::vector<float> x;
    static thread_local std::vector<std::uint32_t> order;
    const auto n = static_cast<std::size_t>(job.range.size());
    const float mid = job.segment.mid;
    x.assign(accumulated, accumulated + n);
    if (residual != nullptr)
      for (std::size_t i = 0; i < n; ++i) x[i] += residual[i];
    if (!std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); })) {
      std::memcpy(payload, &kNonfinite, 4);
      return {4, true};
    }
    order.resize(n);
    std::iota(order.begin(), order.end(), 0U);
    const auto middle = order.begin() + static_cast<std::ptrdiff_t>(kept(job.range.size()));
    std::partial_sort(order.begin(), middle, order.end(), [](std::uint32_t a, std::uint32_t b) {
      return std::abs(x[a]) != std::abs(x[b]) ? std::abs(x[a]) > std::abs(x[b]) : a < b;
    });
    const auto end = std::find_if(order.begin(), middle, [](std::uint32_t i) { return x[i] == 0.0F; });
    std::sort(order.begin(), end);
    const auto count = static_cast<std::uint32_t>(end - order.begin());
    if (residual != nullptr) std::copy(x.begin(), x.end(), residual);
    std::memcpy(payload, &count, 4);
    for (std::size_t j = 0; j < count; ++j) {
      const float value = x[order[j]] * mid;
      std::memcpy(payload + 4 + 4 * j, &order[j], 4);
      std::memcpy(payload + 4 + 4 * (count + j), &value, 4);
      if (residual != nullptr) residual[order[j]] -= value / mid;
    }
    return {4 + std::size_t{8} * count, false};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool /*stream*/) const override {
    static thread_local std::vector<float> sum;
    const auto n = static_cast<std::size_t>(job.range.size());
    sum.assign(n, 0.0F);
    bool first = true;
    for (MergeSource& source : sources) {
      if (source.raw != nullptr) {
        for (std::size_t i = 0; i < n; ++i)
          sum[i] = first ? source.raw[i] * source.factor : sum[i] + source.raw[i] * source.factor;
        source.raw += n;
      } else {
        source.payload += add_payload(job, {source.payload, source.payload_end}, sum);
      }
      first = false;
    }
    std::copy(sum.begin(), sum.end(), out);
    return !std::all_of(sum.begin(), sum.end(), [](float value) { return std::isfinite(value); });
  }

 private:
  /// Adds D(payload) to `sum`; the payload may go on after the unit. Returns the bytes that were the unit's.
  std::size_t add_payload(const BlockJob& job, std::span<const std::byte> payload, std::vector<float>& sum) const {
    std::uint32_t count = 0;
    if (payload.size() < 4) throw_corrupt(info_, job.segment, payload.size(), 4);
    std::memcpy(&count, payload.data(), 4);
    if (count == kNonfinite) {
      std::fill(sum.begin(), sum.end(), std::nanf(""));
      return 4;
    }
    if (count > kept(job.range.size())) throw_corrupt(info_, job.segment, count, kept(job.range.size()));
    const std::size_t bytes = 4 + std::size_t{8} * count;
    if (payload.size() < bytes) throw_corrupt(info_, job.segment, payload.size(), bytes);
    for (std::size_t j = 0; j < count; ++j) {
      std::uint32_t index = 0;
      float value = 0;
      std::memcpy(&index, payload.data() + 4 + 4 * j, 4);
      std::memcpy(&value, payload.data() + 4 + 4 * (count + j), 4);
      if (index >= sum.size()) throw_corrupt(info_, job.segment, index, sum.size());
      sum[index] += value;
    }
    return bytes;
  }

  std::size_t kept(std::int64_t elements) const {
    const auto k = static_cast<std::int64_t>(std::ceil(ratio_ * static_cast<double>(elements)));
    return static_cast<std::size_t>(std::clamp<std::int64_t>(k, 1, elements));
  }

  CodecInfo info_;
  double ratio_;
};

}  // namespace

CodecPointer make_test_topk(Spec& spec) {
  const double ratio = spec.take_number("ratio", 0.01);
  spec.finish("ratio (above 0, up to 1)");
  if (!(ratio > 0.0 && ratio <= 1.0)) spec.refuse("ratio must be above 0 and at most 1");
  return std::make_shared<TestTopk>(ratio);
}

}  // namespace casync::codec
