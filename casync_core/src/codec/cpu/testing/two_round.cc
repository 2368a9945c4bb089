#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `test_tworound`: stands for the codecs that agree on something before they send values, as TopKC does. Units of 2^14
/// elements in chunks of 256. Round 0 sends each chunk's squared norm; the largest norms of all ranks choose a quarter
/// of the unit's chunks, ties to the lower one; round 1 sends those, in ascending order, padded to 256 float32 each,
/// and their mean is taken. The residual is read in both rounds and written in the last. A unit whose aggregated norms
/// are not all finite decodes to NaN. Scalar code: it is for tests of the runtime.
namespace casync::codec {
namespace {

constexpr std::int64_t kUnit = 16384;
constexpr std::int64_t kChunk = 256;
constexpr std::size_t kChunksPerUnit = kUnit / kChunk;

constexpr std::size_t chunks_of(std::int64_t elements) {
  return static_cast<std::size_t>((elements + kChunk - 1) / kChunk);
}
constexpr std::size_t chosen_of(std::int64_t elements) { return (chunks_of(elements) + 3) / 4; }

float read_float(const std::byte* at, std::size_t index) {
  float value = 0;
  std::memcpy(&value, at + 4 * index, 4);
  return value;
}
void write_float(std::byte* at, std::size_t index, float value) { std::memcpy(at + 4 * index, &value, 4); }

/// The chunks of one unit that round 1 carries.
struct Choice {
  bool finite = true;
  std::array<std::size_t, kChunksPerUnit> chunk{};  ///< the first `count` are chosen, ascending
  std::size_t count = 0;
};

Choice choose(const std::byte* norms, std::int64_t elements) {
  Choice choice;
  std::array<float, kChunksPerUnit> norm{};
  const std::size_t chunks = chunks_of(elements);
  for (std::size_t c = 0; c < chunks; ++c) {
    norm[c] = read_float(norms, c);
    choice.finite &= std::isfinite(norm[c]);
    choice.chunk[c] = c;
  }
  choice.count = chosen_of(elements);
  if (!choice.finite) return choice;
  const auto begin = choice.chunk.begin();
  const auto middle = begin + static_cast<std::ptrdiff_t>(choice.count);
  std::partial_sort(begin, middle, begin + static_cast<std::ptrdiff_t>(chunks),
                    [&](std::size_t a, std::size_t b) { return norm[a] != norm[b] ? norm[a] > norm[b] : a < b; });
  std::sort(begin, middle);
  return choice;
}

class TestTwoRound final : public Codec {
 public:
  TestTwoRound() {
    info_.spec = "test_tworound";
    info_.rounds = {{Aggregation::reduce, Merge::max}, {Aggregation::reduce, Merge::mean}};
    info_.feedback = Feedback::wrapper;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : element / kUnit * kUnit;
  }

  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int round) const override {
    const std::int64_t units = range.size() / kUnit;
    const std::int64_t rest = range.size() % kUnit;
    if (round == 0) return 4 * (static_cast<std::size_t>(units) * kChunksPerUnit + chunks_of(rest));
    return std::size_t{4} * kChunk * (static_cast<std::size_t>(units) * chosen_of(kUnit) + chosen_of(rest));
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      CASYNC_CHECK(segment.op == ReduceOp::sum && is_floating(segment.dtype), info_.spec, ": sums of floats only");
      CASYNC_CHECK(segment.round == 1 || segment.raw_out == nullptr, info_.spec, ": round 0 has no raw result");
      const std::size_t norms = bound(segment.shape, segment.dtype, segment.range, 0);
      if (segment.round == 1 && segment.previous.size() != norms)
        throw_corrupt(info_, segment, segment.previous.size(), norms);
      segment.nonfinite = false;
      segment.payload_bytes =
          segment.payload.empty() ? 0 : bound(segment.shape, segment.dtype, segment.range, segment.round);
      run_one(segment);
    }
  }

 private:
  void run_one(Segment& segment) const {
    static thread_local std::vector<std::byte> sum;
    std::size_t at = 0;
    std::size_t norms = 0;
    for (std::int64_t begin = 0; begin < segment.range.size(); begin += kUnit) {
      const std::int64_t n = std::min(kUnit, segment.range.size() - begin);
      const std::size_t bytes =
          4 * (segment.round == 0 ? chunks_of(n) : chosen_of(n) * static_cast<std::size_t>(kChunk));
      const Choice choice = segment.round == 0 ? Choice{} : choose(segment.previous.data() + norms, n);
      sum.assign(bytes, std::byte{0});
      merge(segment, begin, n, at, choice, sum);
      for (std::size_t i = 0; i < bytes / 4; ++i) segment.nonfinite |= !std::isfinite(read_float(sum.data(), i));
      segment.nonfinite |= !choice.finite;
      if (!segment.payload.empty())
        std::copy(sum.begin(), sum.end(), segment.payload.begin() + static_cast<std::ptrdiff_t>(at));
      if (segment.raw_out != nullptr) spread(segment, begin, n, choice, sum);
      at += bytes;
      norms += 4 * chunks_of(n);
    }
  }

  /// The largest of norms, or the mean of values, added in source order; or the encoded sum of the raw sources.
  void merge(Segment& segment, std::int64_t begin, std::int64_t n, std::size_t at, const Choice& choice,
             std::vector<std::byte>& sum) const {
    static thread_local std::vector<float> x;
    bool raw = false;
    x.assign(static_cast<std::size_t>(n), 0.0F);
    for (const Source& source : segment.sources) {
      if (source.raw) {
        const auto* from =
            static_cast<const std::byte*>(source.data) + begin * static_cast<std::int64_t>(size_of(segment.dtype));
        kernels().load_raw[static_cast<std::size_t>(segment.dtype)](from, segment.pre, x.data(), x.data(), n);
        raw = true;
        continue;
      }
      const auto* from = static_cast<const std::byte*>(source.data) + at;
      for (std::size_t i = 0; i < sum.size() / 4; ++i) {
        const float before = read_float(sum.data(), i), value = read_float(from, i);
        const bool replaces = value > before || value != value;  // of norms, which are not negative
        write_float(sum.data(), i, segment.round == 1 ? before + value : replaces ? value : before);
      }
    }
    if (!raw && segment.round == 1) {
      const auto contributions = static_cast<float>(segment.sources.size());
      for (std::size_t i = 0; i < sum.size() / 4; ++i)
        write_float(sum.data(), i, read_float(sum.data(), i) / contributions);
    }
    if (!raw) return;
    float* const residual = segment.residual == nullptr ? nullptr : segment.residual + begin;
    if (residual != nullptr)
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += residual[i];
    if (segment.round == 0)
      add_norms(x, segment.mid, sum);
    else if (choice.finite)
      add_values(x, segment.mid, choice, residual, sum);
  }

  static void add_norms(const std::vector<float>& x, float mid, std::vector<std::byte>& sum) {
    for (std::size_t c = 0; c < sum.size() / 4; ++c) {
      float norm = 0;
      for (std::size_t i = c * kChunk; i < std::min(x.size(), (c + 1) * kChunk); ++i) norm += x[i] * mid * (x[i] * mid);
      write_float(sum.data(), c, read_float(sum.data(), c) + norm);
    }
  }

  static void add_values(const std::vector<float>& x, float mid, const Choice& choice, float* residual,
                         std::vector<std::byte>& sum) {
    if (residual != nullptr) std::copy(x.begin(), x.end(), residual);
    for (std::size_t j = 0; j < choice.count; ++j) {
      const std::size_t first = choice.chunk[j] * kChunk;
      for (std::size_t i = 0; i < std::min<std::size_t>(kChunk, x.size() - first); ++i) {
        const float value = x[first + i] * mid;
        write_float(sum.data(), j * kChunk + i, read_float(sum.data(), j * kChunk + i) + value);
        if (residual != nullptr) residual[first + i] -= value / mid;
      }
    }
  }

  static void spread(Segment& segment, std::int64_t begin, std::int64_t n, const Choice& choice,
                     const std::vector<std::byte>& sum) {
    static thread_local std::vector<float> out;
    out.assign(static_cast<std::size_t>(n), choice.finite ? 0.0F : std::nanf(""));
    for (std::size_t j = 0; choice.finite && j < choice.count; ++j) {
      const std::size_t first = choice.chunk[j] * kChunk;
      for (std::size_t i = 0; i < std::min<std::size_t>(kChunk, out.size() - first); ++i)
        out[first + i] = read_float(sum.data(), j * kChunk + i);
    }
    auto* const to =
        static_cast<std::byte*>(segment.raw_out) + begin * static_cast<std::int64_t>(size_of(segment.dtype));
    const auto store = kernels().store_raw[static_cast<std::size_t>(segment.dtype)];
    segment.nonfinite |= store(out.data(), segment.post, 1.0F, to, n, false);
  }

  CodecInfo info_;
};

}  // namespace

CodecPointer make_test_two_round(Spec& spec) {
  spec.finish("");
  return std::make_shared<TestTwoRound>();
}

}  // namespace casync::codec
