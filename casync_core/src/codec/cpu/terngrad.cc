#include <algorithm>
#include <iterator>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `terngrad(bits=2|4|8)` as HiPress prints it (figure 5; ALGORITHMS: terngrad): min-max quantisation with stochastic
/// rounding, unbiased, over units of 4096 elements. Each unit sends its minimum, the gap between levels, and a code per
/// element.
namespace casync::codec {
namespace {

constexpr std::int64_t kUnit = 4096;

class Terngrad final : public BlockCodec {
 public:
  explicit Terngrad(int bits) : bits_(bits) {
    info_.spec = detail::concat("terngrad(bits=", bits, ")");
    info_.rounds = {Aggregation::reencode};
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return element >= shape.numel() ? shape.numel() : element / kUnit * kUnit;
  }

  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const std::int64_t units = range.size() / kUnit;
    const std::int64_t rest = range.size() % kUnit;
    return static_cast<std::size_t>(units) * bytes_of(kUnit) + (rest > 0 ? bytes_of(rest) : 0);
  }

 protected:
  Encoded encode(const BlockJob& job, const float* accumulated, float* /*residual*/,
                 std::byte* payload) const override {
    const Segment& segment = job.segment;
    RandomKey key{.name_hash = segment.name_hash,
                  .sequence = segment.sequence,
                  .round = segment.round,
                  .stream = static_cast<std::uint32_t>(segment.rank) << 1 | static_cast<std::uint32_t>(segment.role)};
    Encoded encoded;
    for (std::int64_t begin = job.range.begin; begin < job.range.end; begin += kUnit) {
      const std::int64_t n = std::min(kUnit, job.range.end - begin);
      key.coordinate = static_cast<std::uint64_t>(begin);
      const float* const from = accumulated + (begin - job.range.begin);
      encoded.nonfinite |= kernels().terngrad_encode(from, segment.mid, n, bits_, key, payload + encoded.bytes);
      encoded.bytes += bytes_of(n);
    }
    return encoded;
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const Merge merge_unit = kernels().terngrad_merge[bits_ == 2 ? 0 : bits_ == 4 ? 1 : 2];
    bool nonfinite = false;
    for (std::int64_t begin = job.range.begin; begin < job.range.end; begin += kUnit) {
      const std::int64_t n = std::min(kUnit, job.range.end - begin);
      nonfinite |= merge_unit(sources.data(), std::ssize(sources), out, n, stream);
      advance(sources, n, static_cast<std::int64_t>(bytes_of(n)));
      out += n;
    }
    return nonfinite;
  }

 private:
  std::size_t bytes_of(std::int64_t elements) const { return static_cast<std::size_t>(8 + (elements * bits_ + 7) / 8); }

  CodecInfo info_;
  int bits_;
};

}  // namespace

CodecPointer make_terngrad(Spec& spec) {
  const int bits = spec.take_int("bits", 2);
  spec.finish("bits (2, 4 or 8)");
  if (bits != 2 && bits != 4 && bits != 8) spec.refuse("bits must be 2, 4 or 8");
  return std::make_shared<Terngrad>(bits);
}

}  // namespace casync::codec
