#include "codec/cpu/kernels/entries.hpp"
#include "codec/cpu/kernels/fused.hpp"
#include "codec/cpu/kernels/half.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// Elements of the gradient's own dtype to float32 and back: the first and the last step of every codec, all of fp16
/// and bf16, and the sum of uncompressed gradients.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

struct Float32 {
  using Element = float;
  static constexpr std::int32_t kOverflow =
      0x7f800000;  ///< magnitudes from here on, as float32 bits, are stored as Inf or NaN
  CASYNC_INLINE static F32x16 read(const float* from) { return load(from); }
  CASYNC_INLINE static void write(float* to, const F32x16& a) { store(to, a); }
  CASYNC_INLINE static void write_past_caches(float* to, const F32x16& a) { stream(to, a); }
};
template <typename Format>
struct Sixteen : Format {
  using Element = std::uint16_t;
  CASYNC_INLINE static void write_past_caches(std::uint16_t* to, const F32x16& a) {
    std::uint16_t narrow[16];
    Format::write(narrow, a);
    stream_half(to, narrow);
  }
};
struct Half : Sixteen<Float16> {
  static constexpr std::int32_t kOverflow = 0x477ff000;  // 65520, half-way to 2^16
};
struct Brain : Sixteen<BFloat16> {
  static constexpr std::int32_t kOverflow = 0x7f7f8000;
};

template <typename Format, bool kAdd>
bool load_as(const typename Format::Element* src, float factor, const float* addend, float* out, std::int64_t n) {
  const F32x16 scale = splat(factor);
  const std::int64_t ahead = page_ahead();
  FiniteCheck check;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    fetch_ahead(src + i, ahead);
    F32x16 value = Format::read(src + i) * scale;
    if constexpr (kAdd) value = load(addend + i) + value;
    check.see(value);
    store(out + i, value);
  }
  if (const std::int64_t rest = n - i; rest > 0) {
    typename Format::Element padded[16]{};
    __builtin_memcpy(padded, src + i, static_cast<std::size_t>(rest) * sizeof padded[0]);
    F32x16 value = Format::read(padded) * scale;
    if constexpr (kAdd) value = load_first(addend + i, rest) + value;
    check.see(value);
    store_first(out + i, value, rest);
  }
  return check.failed();
}

template <typename Format>
bool load_any(const void* src, float factor, const float* addend, float* out, std::int64_t n) {
  const auto* from = static_cast<const typename Format::Element*>(src);
  return addend != nullptr ? load_as<Format, true>(from, factor, addend, out, n)
                           : load_as<Format, false>(from, factor, addend, out, n);
}

struct Multiply {
  F32x16 first, second;
  CASYNC_INLINE F32x16 operator()(const F32x16& value) const { return value * first * second; }
};
struct Divide {
  F32x16 divisor, factor;
  CASYNC_INLINE F32x16 operator()(const F32x16& value) const { return value / divisor * factor; }
};

template <typename Format, bool kStream, typename Change>
bool store_as(const float* src, const Change& change, typename Format::Element* to, std::int64_t n) {
  const std::int64_t ahead = page_ahead();
  FiniteCheck check;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    fetch_ahead(src + i, ahead);
    const F32x16 value = change(load(src + i));
    check.see(value);
    if constexpr (kStream)
      Format::write_past_caches(to + i, value);
    else
      Format::write(to + i, value);
  }
  if (const std::int64_t rest = n - i; rest > 0) {
    const F32x16 value = change(load_first(src + i, rest));
    check.see(value);
    typename Format::Element padded[16];
    Format::write(padded, value);
    __builtin_memcpy(to + i, padded, static_cast<std::size_t>(rest) * sizeof padded[0]);
  }
  return check.failed(Format::kOverflow);
}

template <typename Format, typename Change>
bool store_any(const float* src, const Change& change, void* dst, std::int64_t n, bool streaming) {
  using Element = typename Format::Element;
  auto* to = static_cast<Element*>(dst);
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(dst) % 64);
  if (!streaming || past % static_cast<std::int64_t>(sizeof(Element)) != 0)
    return store_as<Format, false>(src, change, to, n);
  // Elements up to the first cache line by ordinary stores, so that the rest is aligned.
  const std::int64_t head = past == 0 ? 0 : (64 - past) / static_cast<std::int64_t>(sizeof(Element));
  if (head >= n) return store_as<Format, false>(src, change, to, n);
  const bool before = store_as<Format, false>(src, change, to, head);
  return store_as<Format, true>(src + head, change, to + head, n - head) || before;
}

/// Payloads that are elements of a format.
template <typename Format>
class ElementPayload {
 public:
  CASYNC_INLINE ElementPayload(const MergeSource& source, std::int64_t ahead)
      : payload_(source.payload), ahead_(ahead) {}
  CASYNC_INLINE F32x16 at(std::int64_t i) const {
    const auto* const from = reinterpret_cast<const typename Format::Element*>(payload_) + i;
    fetch_ahead(from, ahead_);
    return Format::read(from);
  }
  CASYNC_INLINE float one(std::int64_t i) const {
    typename Format::Element padded[16]{};
    __builtin_memcpy(padded, payload_ + i * static_cast<std::int64_t>(sizeof padded[0]), sizeof padded[0]);
    return Format::read(padded).r[0][0];
  }

 private:
  const std::byte* payload_;
  std::int64_t ahead_;
};

CASYNC_INLINE bool all_exponent_bits(float value) {
  return (__builtin_bit_cast(std::uint32_t, value) & 0x7f800000U) == 0x7f800000U;
}

}  // namespace

bool load_float32(const void* src, float factor, const float* addend, float* out, std::int64_t n) {
  return load_any<Float32>(src, factor, addend, out, n);
}
bool load_float16(const void* src, float factor, const float* addend, float* out, std::int64_t n) {
  return load_any<Half>(src, factor, addend, out, n);
}
bool load_bfloat16(const void* src, float factor, const float* addend, float* out, std::int64_t n) {
  return load_any<Brain>(src, factor, addend, out, n);
}

bool load_float64(const void* src, float factor, const float* addend, float* out, std::int64_t n) {
  const auto* from = static_cast<const double*>(src);
  bool nonfinite = false;
  for (std::int64_t i = 0; i < n; ++i) {
    float value = static_cast<float>(from[i]) * factor;
    if (addend != nullptr) value = addend[i] + value;
    nonfinite |= all_exponent_bits(value);
    out[i] = value;
  }
  return nonfinite;
}

bool merge_float32(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<ElementPayload<Float32>>(sources, count, out, n, streaming);
}
bool merge_float16(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<ElementPayload<Half>>(sources, count, out, n, streaming);
}
bool merge_bfloat16(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<ElementPayload<Brain>>(sources, count, out, n, streaming);
}

bool store_float32(const float* src, float first, float second, void* dst, std::int64_t n, bool streaming) {
  return store_any<Float32>(src, Multiply{splat(first), splat(second)}, dst, n, streaming);
}
bool store_float16(const float* src, float first, float second, void* dst, std::int64_t n, bool streaming) {
  return store_any<Half>(src, Multiply{splat(first), splat(second)}, dst, n, streaming);
}
bool store_bfloat16(const float* src, float first, float second, void* dst, std::int64_t n, bool streaming) {
  return store_any<Brain>(src, Multiply{splat(first), splat(second)}, dst, n, streaming);
}

bool divide_float32(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool streaming) {
  return store_any<Float32>(src, Divide{splat(divisor), splat(factor)}, dst, n, streaming);
}
bool divide_float16(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool streaming) {
  return store_any<Half>(src, Divide{splat(divisor), splat(factor)}, dst, n, streaming);
}
bool divide_bfloat16(const float* src, float divisor, float factor, void* dst, std::int64_t n, bool streaming) {
  return store_any<Brain>(src, Divide{splat(divisor), splat(factor)}, dst, n, streaming);
}

bool store_float64(const float* src, float first, float second, void* dst, std::int64_t n, bool /*streaming*/) {
  auto* to = static_cast<double*>(dst);
  bool nonfinite = false;
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = src[i] * first * second;
    nonfinite |= all_exponent_bits(value);
    to[i] = static_cast<double>(value);
  }
  return nonfinite;
}

}  // namespace casync::codec::CASYNC_KERNEL_ISA
