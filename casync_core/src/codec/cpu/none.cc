#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "casync/error.hpp"
#include "codec/cpu/adasum.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"
#include "codec/cpu/mean.hpp"

/// `none`: the payload is the gradient's own bytes. Sums of float32 and of 16-bit floats take the blocks' path (float32
/// accumulator, one rounding), and their Adasum too; everything else (float64, integers, bool, min, max, product) is
/// done here element by element.
namespace casync::codec {
namespace {

/// Applies a factor that the contract carries as float32. Nearly always it is that of a mean, and the division is exact
/// for integers (quotients truncate toward zero) and keeps float64 in double precision.
class Factor {
 public:
  explicit Factor(float factor) : factor_(static_cast<double>(factor)), divisor_(divisor_of(factor)) {}

  template <typename Accumulator>
  Accumulator apply(Accumulator value) const {
    if (divisor_ == 1) return value;
    if (divisor_ != 0) return value / static_cast<Accumulator>(divisor_);
    const double product = static_cast<double>(value) * factor_;
    if constexpr (std::is_integral_v<Accumulator>) {  // what is out of range stays at its end
      if (!(product < 0x1p63)) return std::numeric_limits<Accumulator>::max();
      if (product < -0x1p63) return std::numeric_limits<Accumulator>::min();
    }
    return static_cast<Accumulator>(product);
  }

 private:
  double factor_;
  std::int64_t divisor_;
};

/// Integers accumulate in 64 bits, so that an Average of many int8 does not wrap before it is divided; what is stored
/// wraps.
template <typename Element>
using AccumulatorOf = std::conditional_t<std::is_floating_point_v<Element>, double, std::int64_t>;

template <typename Accumulator>
Accumulator combine(ReduceOp op, Accumulator a, Accumulator b) {
  if constexpr (std::is_integral_v<Accumulator>) {
    using Unsigned = std::make_unsigned_t<Accumulator>;  // defined to wrap
    if (op == ReduceOp::sum) return static_cast<Accumulator>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    if (op == ReduceOp::product) return static_cast<Accumulator>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  } else {
    if (op == ReduceOp::sum) return a + b;
    if (op == ReduceOp::product) return a * b;
    if (b != b) return b;  // min and max pass NaN on, whichever side it is on
  }
  if (op == ReduceOp::min) return b < a ? b : a;
  return b > a ? b : a;
}

/// Reads and writes one element; float16 and bfloat16 go through a float32 of the kernels.
template <typename Element>
struct Plain {
  using Accumulator = AccumulatorOf<Element>;
  static constexpr bool kFloating = std::is_floating_point_v<Element>;
  static Accumulator read(const std::byte* at) {
    Element value{};
    std::memcpy(&value, at, sizeof value);
    return static_cast<Accumulator>(value);
  }
  static void write(std::byte* at, Accumulator value) {
    const auto element = static_cast<Element>(value);
    std::memcpy(at, &element, sizeof element);
  }
};

template <std::size_t kDType>
struct Sixteen {
  using Accumulator = double;
  static constexpr bool kFloating = true;
  static double read(const std::byte* at) {
    float value = 0;
    kernels().load_raw[kDType](at, 1.0F, nullptr, &value, 1);
    return static_cast<double>(value);
  }
  static void write(std::byte* at, double value) {
    const auto narrow = static_cast<float>(value);
    kernels().store_raw[kDType](&narrow, 1.0F, 1.0F, at, 1, false);
  }
};

/// bool: sum and max are `or`, product and min are `and`; factors mean nothing.
struct Boolean {
  using Accumulator = std::int64_t;
  static constexpr bool kFloating = false;
  static Accumulator read(const std::byte* at) { return *at != std::byte{0} ? 1 : 0; }
  static void write(std::byte* at, Accumulator value) { *at = value != 0 ? std::byte{1} : std::byte{0}; }
};

template <typename Format>
void merge_elements(Segment& segment) {
  constexpr bool kIsBoolean = std::is_same_v<Format, Boolean>;
  const Factor pre(kIsBoolean ? 1.0F : segment.pre);
  const Factor mid(kIsBoolean ? 1.0F : segment.mid);
  const Factor post(kIsBoolean ? 1.0F : segment.post);
  const std::size_t size = size_of(segment.dtype);
  const auto count = static_cast<std::size_t>(segment.range.size());
  for (std::size_t i = 0; i < count; ++i) {
    typename Format::Accumulator sum{};
    bool first = true;
    for (const Source& source : segment.sources) {
      auto value = Format::read(static_cast<const std::byte*>(source.data) + i * size);
      if (source.raw) value = pre.apply(value);
      sum = first ? value : combine(segment.op, sum, value);
      first = false;
    }
    sum = mid.apply(sum);
    if (!segment.payload.empty()) {
      Format::write(segment.payload.data() + i * size, sum);
      sum = Format::read(segment.payload.data() + i * size);
    }
    if constexpr (Format::kFloating) segment.nonfinite |= !std::isfinite(sum);
    if (segment.raw_out != nullptr) Format::write(static_cast<std::byte*>(segment.raw_out) + i * size, post.apply(sum));
  }
  if (!segment.payload.empty()) segment.payload_bytes = count * size;
}

/// Of float64; the blocks' path would round to float32.
void merge_adasum(Segment& segment) {
  CASYNC_CHECK(segment.payload.empty() && segment.pre == 1.0F, "none: Adasum is delivered by who merges it");
  const Factor factor(segment.mid * segment.post);
  const auto bytes = [](std::int64_t elements) { return static_cast<std::size_t>(elements) * sizeof(double); };
  const auto read = [&](const Range& block, double* values) {
    const std::size_t begin = bytes(block.begin - segment.range.begin);
    for (const Source& source : segment.sources) {
      std::memcpy(values, static_cast<const std::byte*>(source.data) + begin, bytes(block.size()));
      values += block.size();
    }
  };
  const auto write = [&](const Range& block, const double* values) {
    auto* out = static_cast<std::byte*>(segment.raw_out) + bytes(block.begin - segment.range.begin);
    for (std::int64_t i = 0; i < block.size(); ++i, out += sizeof(double)) {
      const double value = factor.apply(values[i]);
      segment.nonfinite |= !std::isfinite(value);
      std::memcpy(out, &value, sizeof value);
    }
  };
  Adasum::run(segment.sources.size(), segment.range, read, write);
}

class None final : public BlockCodec {
 public:
  None() {
    info_.spec = "none";
    info_.rounds = {{Aggregation::reduce}};
    info_.identity = true;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType dtype, const Range& range, int /*round*/) const override {
    return static_cast<std::size_t>(range.size()) * size_of(dtype);
  }

 protected:
  Encoded encode(const BlockJob& job, const float* accumulated, float* /*residual*/,
                 std::byte* payload) const override {
    const auto dtype = job.segment.dtype;
    const std::int64_t n = job.range.size();
    const bool nonfinite = store(accumulated, dtype, job.segment.mid, 1.0F, payload, n, job.stream);
    return {static_cast<std::size_t>(n) * size_of(dtype), nonfinite};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const auto dtype = job.segment.dtype;
    const std::int64_t n = job.range.size();
    const auto add = kernels().merge_raw[static_cast<std::size_t>(dtype)];
    const bool nonfinite = add(sources.data(), std::ssize(sources), out, n, stream);
    advance(sources, n, n * static_cast<std::int64_t>(size_of(dtype)));
    return nonfinite;
  }

  bool store(const float* values, DType dtype, float factor, float post, void* out, std::int64_t n,
             bool stream) const override {
    const std::int64_t divisor = divisor_of(factor);
    if (divisor <= 1) return BlockCodec::store(values, dtype, factor, post, out, n, stream);
    const auto divide = kernels().divide_raw[static_cast<std::size_t>(dtype)];
    return divide(values, static_cast<float>(divisor), post, out, n, stream);
  }

  bool run_otherwise(Segment& segment) const override {
    const bool adasum = segment.op == ReduceOp::adasum;
    CASYNC_CHECK(segment.op != ReduceOp::average && (!adasum || is_floating(segment.dtype)), "none cannot do ",
                 name_of(segment.op), " of ", name_of(segment.dtype), " within a segment");
    CASYNC_CHECK(!segment.sources.empty() || segment.range.size() == 0, "none: no sources");
    const bool sum = segment.op == ReduceOp::sum || adasum;
    switch (segment.dtype) {
      case DType::float32:
        return sum ? false : (merge_elements<Plain<float>>(segment), true);
      case DType::float16:
        return sum ? false : (merge_elements<Sixteen<1>>(segment), true);
      case DType::bfloat16:
        return sum ? false : (merge_elements<Sixteen<2>>(segment), true);
      case DType::float64:
        return adasum ? merge_adasum(segment) : merge_elements<Plain<double>>(segment), true;
      case DType::int8:
        return merge_elements<Plain<std::int8_t>>(segment), true;
      case DType::int16:
        return merge_elements<Plain<std::int16_t>>(segment), true;
      case DType::int32:
        return merge_elements<Plain<std::int32_t>>(segment), true;
      case DType::int64:
        return merge_elements<Plain<std::int64_t>>(segment), true;
      case DType::uint8:
        return merge_elements<Plain<std::uint8_t>>(segment), true;
      case DType::uint16:
        return merge_elements<Plain<std::uint16_t>>(segment), true;
      case DType::boolean:
        return merge_elements<Boolean>(segment), true;
    }
    CASYNC_CHECK(false, "none: unknown dtype");
  }

 private:
  CodecInfo info_;
};

}  // namespace

CodecPointer make_none(Spec& spec) {
  spec.finish("");
  return std::make_shared<None>();
}

}  // namespace casync::codec
