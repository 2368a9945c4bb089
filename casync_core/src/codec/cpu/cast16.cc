#include <iterator>
#include <utility>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `fp16` and `bf16`: a cast, rounded to nearest even. The mean's 1/N is applied before the
/// first cast (`prescaled`), so that the sum of N payloads cannot overflow; a merge adds in float32 and rounds once.
namespace casync::codec {
namespace {

class Cast16 final : public BlockCodec {
 public:
  Cast16(std::string name, DType wire) : wire_(static_cast<std::size_t>(wire)) {
    info_.spec = std::move(name);
    info_.rounds = {{Aggregation::reduce}};
    info_.cast = wire;
    info_.prescaled = true;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int /*round*/) const override {
    return static_cast<std::size_t>(range.size()) * 2;
  }

 protected:
  Encoded encode(const BlockJob& job, const float* accumulated, float* /*residual*/,
                 std::byte* payload) const override {
    const std::int64_t n = job.range.size();
    const bool nonfinite = kernels().store_raw[wire_](accumulated, job.segment.mid, 1.0F, payload, n, job.stream);
    return {static_cast<std::size_t>(n) * 2, nonfinite};
  }

  bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const override {
    const std::int64_t n = job.range.size();
    const bool nonfinite = kernels().merge_raw[wire_](sources.data(), std::ssize(sources), out, n, stream);
    advance(sources, n, n * 2);
    return nonfinite;
  }

 private:
  CodecInfo info_;
  std::size_t wire_;
};

}  // namespace

CodecPointer make_fp16(Spec& spec) {
  spec.finish("");
  return std::make_shared<Cast16>("fp16", DType::float16);
}

CodecPointer make_bf16(Spec& spec) {
  spec.finish("");
  return std::make_shared<Cast16>("bf16", DType::bfloat16);
}

}  // namespace casync::codec
