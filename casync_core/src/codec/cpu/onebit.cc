#include <iterator>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"
#include "codec/cpu/group_layout.hpp"

/// `onebit` (Seide et al. 2014, "1-bit stochastic gradient descent", section 3.1; ALGORITHMS: onebit). Each group sends
/// the sign bits of its elements and two float32: the mean of those >= 0 and the mean of those < 0. What that loses
/// stays in the residual (section 3: without it training diverges); the owner of a partition encodes the mean again,
/// with a residual of its own.
namespace casync::codec {
namespace {

class Onebit final : public BlockCodec {
 public:
  Onebit() {
    info_.spec = "onebit";
    info_.rounds = {Aggregation::reencode};
    info_.feedback = Feedback::wrapper;
  }

  const CodecInfo& info() const override { return info_; }

  std::int64_t cut(const Shape& shape, std::int64_t element) const override {
    return GroupLayout(shape).floor(element);
  }

  std::size_t bound(const Shape& shape, DType /*dtype*/, const Range& range, int /*round*/) const override {
    const GroupLayout layout(shape);
    return static_cast<std::size_t>(layout.bytes_before(range.end) - layout.bytes_before(range.begin));
  }

 protected:
  bool fills_cache_lines(const Shape& shape) const override { return GroupLayout(shape).multiples_of(16); }

  Encoded encode(const BlockJob& job, const float* accumulated, float* residual, std::byte* payload) const override {
    const Kernels& kernel = kernels();
    const GroupLayout layout(job.segment.shape);
    Encoded encoded;
    for (std::int64_t begin = job.range.begin; begin < job.range.end;) {
      const std::int64_t n = layout.end_of(begin) - begin;
      encoded.nonfinite |= kernel.onebit_encode(accumulated, residual, job.segment.mid, n, payload + encoded.bytes);
      encoded.bytes += static_cast<std::size_t>(GroupLayout::bytes_of(n));
      accumulated += n;
      if (residual != nullptr) residual += n;
      begin += n;
    }
    return encoded;
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const Kernels& kernel = kernels();
    const GroupLayout layout(job.segment.shape);
    bool nonfinite = false;
    for (std::int64_t begin = job.range.begin; begin < job.range.end;) {
      const std::int64_t n = layout.end_of(begin) - begin;
      nonfinite |= kernel.onebit_merge(sources.data(), std::ssize(sources), out, n, stream);
      advance(sources, n, GroupLayout::bytes_of(n));
      out += n;
      begin += n;
    }
    return nonfinite;
  }

 private:
  CodecInfo info_;
};

}  // namespace

CodecPointer make_onebit(Spec& spec) {
  spec.finish("");
  return std::make_shared<Onebit>();
}

}  // namespace casync::codec
