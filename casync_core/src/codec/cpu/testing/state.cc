#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `test_state(gather=0)`: stands for the codecs that keep state of their own, as TBQ and DGC do. Units of 1024
/// elements. It keeps the momentum u and what it has not sent, v, of every element, and one threshold tau, which is the
/// ranks' mean magnitude of the first gradient:
///   u = momentum * u + g;  x = v + u;  y = x * mid;  D = tau * sgn(y) where |y| > tau, else 0;  v = x - D / mid
/// A byte per element says which it was: 0, 1 (+tau) or 2 (-tau); 3 throughout a unit that is not finite, which changes
/// no state. gather=1 gathers what otherwise is encoded again. Scalar code: it is for tests of the runtime.
namespace casync::codec {
namespace {

constexpr std::int64_t kUnit = 1024;
enum Array : std::size_t { kPending, kMomentum, kThreshold, kArrays };
enum class Code : std::uint8_t { nothing = 0, plus = 1, minus = 2, nonfinite = 3 };

class TestState final : public BlockCodec {
 public:
  explicit TestState(bool gathers) {
    info_.spec = detail::concat("test_state(gather=", gathers ? 1 : 0, ")");
    info_.rounds = {{gathers ? Aggregation::gather : Aggregation::reencode}};
    info_.feedback = Feedback::own;
    info_.momentum = true;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : element / kUnit * kUnit;
  }

  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int /*round*/) const override {
    return static_cast<std::size_t>(range.size());
  }

  std::vector<StateArray> state(const Shape& shape) const override {
    return {{.name = "v", .elements = shape.numel(), .per_element = true, .pending = true},
            {.name = "u", .elements = shape.numel(), .per_element = true},
            {.name = "tau", .elements = 1, .shared = true}};
  }

  /// Payloads that come with the rank's own gradient join v, and not the momentum.
  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      std::vector<Source> payloads, raw;
      for (const Source& source : segment.sources) (source.raw ? raw : payloads).push_back(source);
      if (segment.payload.empty() || payloads.empty() || raw.empty()) {
        BlockCodec::run({&segment, 1});
        continue;
      }
      std::vector<float> others(static_cast<std::size_t>(segment.range.size()));
      Segment decode = segment;
      decode.dtype = DType::float32;
      decode.sources = payloads;
      decode.mid = decode.post = 1.0F;
      decode.payload = {};
      decode.raw_out = others.data();
      BlockCodec::run({&decode, 1});
      const std::span<const Source> all = std::exchange(segment.sources, raw);
      others_of_thread() = std::move(others);
      BlockCodec::run({&segment, 1});
      others_of_thread().clear();
      segment.sources = all;
    }
  }

  std::int64_t agreed() const override { return 1; }

  void propose(const Segment& segment, std::span<float> values) const override {
    const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
    const auto* const raw = static_cast<const std::byte*>(segment.sources[0].data);
    const std::int64_t numel = segment.shape.numel();
    double sum = 0;
    for (std::int64_t i = 0; i < numel; ++i) {
      float value = 0;
      load(raw + i * static_cast<std::int64_t>(size_of(segment.dtype)), segment.pre, nullptr, &value, 1);
      sum += static_cast<double>(std::abs(value));
    }
    values[0] = static_cast<float>(sum / static_cast<double>(numel));
  }

  void agree(const Segment& segment, std::span<const float> values) const override {
    *segment.state[kThreshold] = values[0];
  }

 protected:
  Encoded encode(const BlockJob& job, const float* accumulated, float* /*residual*/,
                 std::byte* payload) const override {
    const Segment& segment = job.segment;
    CASYNC_CHECK(segment.state.size() == kArrays, info_.spec, " has no state");
    bool nonfinite = false;
    for (std::int64_t begin = 0; begin < job.range.size(); begin += kUnit) {
      const auto n = static_cast<std::size_t>(std::min(kUnit, job.range.size() - begin));
      nonfinite |= encode_unit(segment, job.range.begin + begin, n, accumulated + begin, payload + begin);
    }
    return {static_cast<std::size_t>(job.range.size()), nonfinite};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool /*stream*/) const override {
    CASYNC_CHECK(job.segment.state.size() == kArrays, info_.spec, " has no state");
    const float tau = *job.segment.state[kThreshold];
    bool nonfinite = false;
    for (std::int64_t i = 0; i < job.range.size(); ++i) {
      float sum = 0;
      for (std::size_t s = 0; s < sources.size(); ++s) {
        const float value = sources[s].raw != nullptr ? sources[s].raw[i] * sources[s].factor
                                                      : level(job, static_cast<Code>(sources[s].payload[i]), tau);
        sum = s == 0 ? value : sum + value;
      }
      out[i] = sum;
      nonfinite |= !std::isfinite(sum);
    }
    advance(sources, job.range.size(), job.range.size());
    return nonfinite;
  }

 private:
  /// Of the segment that is being encoded; empty: there are no others.
  static std::vector<float>& others_of_thread() {
    static thread_local std::vector<float> own;
    return own;
  }

  /// Returns whether the unit is not finite.
  static bool encode_unit(const Segment& segment, std::int64_t begin, std::size_t n, const float* accumulated,
                          std::byte* payload) {
    static thread_local std::vector<float> momentum, x;
    const std::vector<float>& others = others_of_thread();
    const auto first = static_cast<std::size_t>(begin - segment.range.begin);
    float* const u = segment.state[kMomentum] + begin;
    float* const v = segment.state[kPending] + begin;
    const float tau = *segment.state[kThreshold];
    momentum.resize(n);
    x.resize(n);
    bool finite = true;
    for (std::size_t i = 0; i < n; ++i) {
      momentum[i] = segment.momentum * u[i] + accumulated[i];
      x[i] = v[i] + (others.empty() ? 0.0F : others[first + i]) + momentum[i];
      finite &= std::isfinite(x[i] * segment.mid);
    }
    if (!finite) {
      std::fill_n(payload, n, static_cast<std::byte>(Code::nonfinite));
      return true;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const float y = x[i] * segment.mid;
      const Code code = y > tau ? Code::plus : y < -tau ? Code::minus : Code::nothing;
      const float sent = code == Code::plus ? tau : code == Code::minus ? -tau : 0.0F;
      payload[i] = static_cast<std::byte>(code);
      u[i] = momentum[i];
      v[i] = x[i] - sent / segment.mid;
    }
    return false;
  }

  float level(const BlockJob& job, Code code, float tau) const {
    switch (code) {
      case Code::nothing:
        return 0.0F;
      case Code::plus:
        return tau;
      case Code::minus:
        return -tau;
      case Code::nonfinite:
        return std::nanf("");
    }
    throw_corrupt(info_, job.segment, static_cast<std::size_t>(code), static_cast<std::size_t>(Code::nonfinite));
  }

  CodecInfo info_;
};

}  // namespace

CodecPointer make_test_state(Spec& spec) {
  const int gather = spec.take_int("gather", 0);
  spec.finish("gather (0 or 1)");
  return std::make_shared<TestState>(gather != 0);
}

}  // namespace casync::codec
