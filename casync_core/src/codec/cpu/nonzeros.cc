#include <algorithm>
#include <cstring>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/codecs.hpp"

/// `nonzeros`: elements of any float dtype without those whose bits are all zero, so nothing is lost:
///   count, a uint64; for each element its distance from the one before, in 7 bits a byte, the lowest first, and the
///   8th bit set where another byte follows; then the elements
/// Where that would be no shorter, count is kDense and all elements follow. It is no codec for gradients: routes send
/// with it what they have merged of sparse payloads.
namespace casync::codec {
namespace {

constexpr std::uint64_t kDense = ~std::uint64_t{0};
constexpr std::size_t kHead = sizeof kDense;

class Nonzeros final : public Codec {
 public:
  Nonzeros() {
    info_.spec = "nonzeros";
    info_.rounds = {{Aggregation::gather}};
    info_.fixed_size = false;
  }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType dtype, const Range& range, int /*round*/) const override {
    return range.size() == 0 ? 0 : kHead + static_cast<std::size_t>(range.size()) * size_of(dtype);
  }

  void run(std::span<Segment> segments) const override {
    for (Segment& segment : segments) {
      check_segment(*this, segment);
      CASYNC_CHECK(segment.sources.size() == 1 && is_floating(segment.dtype), info_.spec,
                   " takes one source of floats");
      segment.payload_bytes = 0;
      segment.nonfinite = false;
      if (segment.range.size() == 0) continue;
      if (segment.sources[0].raw) {
        encode(segment);
      } else {
        decode(segment);
      }
    }
  }

 private:
  void encode(Segment& segment) const {
    const std::size_t width = size_of(segment.dtype);
    const auto n = static_cast<std::size_t>(segment.range.size());
    const auto* const elements = static_cast<const std::byte*>(segment.sources[0].data);
    const std::size_t limit = bound(segment.shape, segment.dtype, segment.range, 0);
    static thread_local std::vector<std::byte> distances;
    static thread_local std::vector<std::byte> values;
    distances.clear();
    values.clear();
    std::uint64_t count = 0;
    std::size_t next = 0;
    for (std::size_t i = 0; i < n && kHead + distances.size() + values.size() < limit; ++i) {
      const std::byte* const element = elements + i * width;
      if (std::all_of(element, element + width, [](std::byte byte) { return byte == std::byte{0}; })) continue;
      for (std::size_t distance = i - next;; distance >>= 7U) {
        const bool goes_on = distance > 0x7f;
        distances.push_back(static_cast<std::byte>((distance & 0x7fU) | (goes_on ? 0x80U : 0U)));
        if (!goes_on) break;
      }
      values.insert(values.end(), element, element + width);
      next = i + 1;
      ++count;
    }
    std::byte* const to = segment.payload.data();
    segment.payload_bytes = std::min(kHead + distances.size() + values.size(), limit);
    if (segment.payload_bytes == limit) {
      std::memcpy(to, &kDense, kHead);
      std::copy(elements, elements + n * width, to + kHead);
      return;
    }
    std::memcpy(to, &count, kHead);
    std::ranges::copy(distances, to + kHead);
    std::ranges::copy(values, to + kHead + distances.size());
  }

  void decode(Segment& segment) const {
    const Source& source = segment.sources[0];
    const std::size_t width = size_of(segment.dtype);
    const auto n = static_cast<std::size_t>(segment.range.size());
    const auto* const from = static_cast<const std::byte*>(source.data);
    auto* const out = static_cast<std::byte*>(segment.raw_out);
    std::uint64_t count = 0;
    if (source.bytes < kHead) throw_corrupt(info_, segment, source.bytes, kHead);
    std::memcpy(&count, from, kHead);
    const bool dense = count == kDense;
    const std::uint64_t sent = dense ? n : count;
    if (sent > n || source.bytes < kHead + sent * width)
      throw_corrupt(info_, segment, source.bytes, kHead + sent * width);
    const std::byte* const values = from + source.bytes - sent * width;
    if (dense) {
      if (values != from + kHead) throw_corrupt(info_, segment, source.bytes, kHead + n * width);
      std::copy(values, values + n * width, out);
    } else {
      std::fill(out, out + n * width, std::byte{0});
      scatter(segment, {from + kHead, values}, values, sent);
    }
    segment.nonfinite = any_nonfinite(segment, out, n);
  }

  void scatter(const Segment& segment, std::span<const std::byte> distances, const std::byte* values,
               std::size_t count) const {
    const std::size_t width = size_of(segment.dtype);
    const auto n = static_cast<std::uint64_t>(segment.range.size());
    std::size_t at = 0;
    std::uint64_t place = 0;
    for (std::size_t k = 0; k < count; ++k) {
      std::uint64_t distance = 0;
      for (unsigned shift = 0;; shift += 7) {
        if (at == distances.size() || shift > 56) throw_corrupt(info_, segment, distances.size(), at + 1);
        const auto byte = std::to_integer<std::uint64_t>(distances[at++]);
        distance |= (byte & 0x7fU) << shift;
        if (byte <= 0x7f) break;
      }
      place += distance;
      if (place >= n) throw_corrupt(info_, segment, static_cast<std::size_t>(place), static_cast<std::size_t>(n));
      std::memcpy(static_cast<std::byte*>(segment.raw_out) + place * width, values + k * width, width);
      ++place;
    }
    if (at != distances.size()) throw_corrupt(info_, segment, distances.size(), at);
  }

  static bool any_nonfinite(const Segment& segment, const std::byte* elements, std::size_t n) {
    constexpr std::size_t kBlock = 4096;
    static thread_local std::vector<float> block(kBlock);
    const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
    bool nonfinite = false;
    for (std::size_t i = 0; i < n; i += kBlock)
      nonfinite |= load(elements + i * size_of(segment.dtype), 1.0F, nullptr, block.data(),
                        static_cast<std::int64_t>(std::min(kBlock, n - i)));
    return nonfinite;
  }

  CodecInfo info_;
};

}  // namespace

CodecPointer make_nonzeros(Spec& spec) {
  spec.finish("");
  return std::make_shared<Nonzeros>();
}

}  // namespace casync::codec
