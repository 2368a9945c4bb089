#include <cmath>
#include <cstring>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `test_lowrank(start=0)`: stands for the codecs that encode a whole gradient in two rounds whose merges average, as
/// PowerSGD does, with rank 1. It keeps the vector q, the same on every rank, which decoding writes:
///   round 0   p = M q, averaged          round 1   p = p / |p|;  q = M' p, averaged        D = p q'
/// for M = gradient + residual; a rank's residual is M - p q' with its own q. Decoded is what the averaged payloads
/// say, so values that are not finite make all of it NaN, and q and the residual stay. Applies to matrices, from step
/// `start` on. Scalar code: it is for tests of the runtime.
namespace casync::codec {
namespace {

using Vector = std::vector<float>;

Vector read(std::span<const std::byte> bytes) {
  Vector values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

bool finite(const Vector& values) {
  bool all = true;
  for (const float value : values) all &= std::isfinite(value);
  return all;
}

Vector normalised(Vector values) {
  float squares = 0;
  for (const float value : values) squares += value * value;
  for (float& value : values) value = squares > 0 ? value / std::sqrt(squares) : 0.0F;
  return values;
}

class TestLowRank final : public Codec {
 public:
  explicit TestLowRank(int start) : start_(static_cast<std::uint32_t>(start)) {
    info_.spec = detail::concat("test_lowrank(start=", start, ")");
    info_.rounds = {{Aggregation::reduce, Merge::mean}, {Aggregation::reduce, Merge::mean}};
    info_.feedback = Feedback::wrapper;
    info_.whole = true;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : 0;
  }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int round) const override {
    if (range.size() == 0) return 0;
    return sizeof(float) * static_cast<std::size_t>(round == 0 ? shape.rows : shape.cols);
  }

  bool applies(const Shape& shape, std::uint32_t sequence) const override {
    return sequence >= start_ && shape.rows > 1 && shape.cols > 1;
  }

  std::vector<StateArray> state(const Shape& shape) const override {
    return {{.name = "q", .elements = shape.cols, .shared = true}};
  }

  void start(const Shape& /*shape*/, std::uint64_t name_hash, std::size_t /*index*/,
             std::span<float> values) const override {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1.0F + static_cast<float>((name_hash >> (i % 56)) & 0xffU) / 256.0F;
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      CASYNC_CHECK(segment.op == ReduceOp::sum && segment.pre == 1.0F && segment.mid == 1.0F, info_.spec,
                   " averages by itself");
      CASYNC_CHECK(segment.state.size() == 1, info_.spec, " has no state");
      if (segment.round == 1 && segment.previous.size() != bound(segment.shape, segment.dtype, segment.range, 0))
        throw_corrupt(info_, segment, segment.previous.size(), bound(segment.shape, segment.dtype, segment.range, 0));
      segment.nonfinite = false;
      segment.payload_bytes = 0;
      if (segment.range.size() == 0) continue;
      const bool encodes = segment.sources[0].raw;
      const Vector values = encodes ? encode(segment) : average(segment);
      segment.nonfinite = !finite(values);
      if (!segment.payload.empty()) {
        segment.payload_bytes = values.size() * sizeof(float);
        std::memcpy(segment.payload.data(), values.data(), segment.payload_bytes);
      }
      if (segment.raw_out != nullptr) decode(segment, values);
    }
  }

 private:
  static Vector average(const Segment& segment) {
    Vector sum;
    for (const Source& source : segment.sources) {
      const Vector values = read({static_cast<const std::byte*>(source.data), source.bytes});
      sum.resize(values.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    for (float& value : sum) value /= static_cast<float>(segment.sources.size());
    return sum;
  }

  static Vector encode(const Segment& segment) {
    const auto rows = static_cast<std::size_t>(segment.shape.rows);
    const auto cols = static_cast<std::size_t>(segment.shape.cols);
    Vector m(rows * cols);
    const float* sum = segment.residual;
    for (const Source& source : segment.sources) {
      kernels().load_raw[static_cast<std::size_t>(segment.dtype)](source.data, 1.0F, sum, m.data(),
                                                                  segment.shape.numel());
      sum = m.data();
    }
    if (segment.round == 0) {
      Vector p(rows);
      for (std::size_t i = 0; i < m.size(); ++i) p[i / cols] += m[i] * segment.state[0][i % cols];
      return p;
    }
    const Vector p = normalised(read(segment.previous));
    Vector q(cols);
    for (std::size_t i = 0; i < m.size(); ++i) q[i % cols] += m[i] * p[i / cols];
    const bool keeps = segment.residual != nullptr && finite(q);
    for (std::size_t i = 0; keeps && i < m.size(); ++i) segment.residual[i] = m[i] - p[i / cols] * q[i % cols];
    return q;
  }

  static void decode(Segment& segment, const Vector& q) {
    const auto cols = static_cast<std::size_t>(segment.shape.cols);
    const Vector p = normalised(read(segment.previous));
    const bool is_finite = finite(p) && finite(q);
    Vector m(static_cast<std::size_t>(segment.shape.numel()), std::nanf(""));
    for (std::size_t i = 0; is_finite && i < m.size(); ++i) m[i] = p[i / cols] * q[i % cols];
    if (is_finite) std::memcpy(segment.state[0], q.data(), q.size() * sizeof(float));
    const auto store = kernels().store_raw[static_cast<std::size_t>(segment.dtype)];
    segment.nonfinite |= store(m.data(), segment.post, 1.0F, segment.raw_out, segment.shape.numel(), false);
  }

  CodecInfo info_;
  std::uint32_t start_;
};

}  // namespace

CodecPointer make_test_low_rank(Spec& spec) {
  const int start = spec.take_int("start", 0);
  spec.finish("start (a step)");
  if (start < 0) spec.refuse("start must be at least 0");
  return std::make_shared<TestLowRank>(start);
}

}  // namespace casync::codec
