#include "codec/cpu/kernels/codes.hpp"
#include "codec/cpu/kernels/entries.hpp"
#include "codec/cpu/kernels/fused.hpp"
#include "codec/cpu/kernels/philox.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// One unit of terngrad (HiPress, figure 5; ALGORITHMS: terngrad): two passes over at most 4096 elements, the second
/// one from the first-level cache. Codes are packed from the lowest bit of each byte upwards.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

constexpr std::int64_t kUnit = 4096;
constexpr std::size_t kHeader = 2 * sizeof(float);

struct Span {
  float minimum = 0;
  float maximum = 0;
  bool nonfinite = false;
};

Span find_span(const float* accumulated, float mid, std::int64_t n) {
  const F32x16 factor = splat(mid);
  F32x16 low = splat(accumulated[0] * mid);
  F32x16 high = low;
  FiniteCheck check;
  const auto see = [&](const F32x16& y) __attribute__((always_inline)) {
    check.see(y);
    low = smaller(y, low);
    high = larger(y, high);
  };
  std::int64_t i = 0;
  if (pages_side_by_side()) {
    for (; i + 4 * kPage <= n; i += 4 * kPage) {
      for (std::int64_t j = i; j < i + kPage; j += 16) {
        for (int page = 0; page < 4; ++page) {
          fetch_ahead(accumulated + j + page * kPage, 4 * kOneStream);
          see(load(accumulated + j + page * kPage) * factor);
        }
      }
    }
  }
  for (; i + 16 <= n; i += 16) see(load(accumulated + i) * factor);
  for (; i < n; ++i) see(splat(accumulated[i] * mid));
  return {fold<Smaller>(low), fold<Larger>(high), check.failed()};
}

/// Nearest integer, ties to even; 0 <= a < 2^31.
CASYNC_INLINE U32x16 nearest(const F32x16& a) {
  U32x16 out;
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    out.r[k] = __builtin_bit_cast(UintRegister, _mm512_cvtps_epi32(a.r[k]));
#elif defined(__AVX2__)
    out.r[k] = __builtin_bit_cast(UintRegister, _mm256_cvtps_epi32(a.r[k]));
#elif defined(__SSE2__)
    out.r[k] = __builtin_bit_cast(UintRegister, _mm_cvtps_epi32(a.r[k]));
#else
    const IntRegister whole = __builtin_convertvector(a.r[k], IntRegister);
    const FloatRegister rest = a.r[k] - __builtin_convertvector(whole, FloatRegister);
    const IntRegister up = (rest > 0.5F) | ((rest == 0.5F) & ((whole & 1) == 1));
    out.r[k] = __builtin_bit_cast(UintRegister, whole - up);
#endif
  }
  return out;
}

CASYNC_INLINE U32x16 at_most(U32x16 a, std::uint32_t limit) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] = a.r[k] < limit ? a.r[k] : UintRegister{} + limit;
  return a;
}

/// codes[i] = min(floor((y - minimum) / gap + u), levels) with u = (r + 0.5) / 65536 (R6), in fixed point with 16
/// fraction bits: floor(z + u) = (nearest(z * 65536) + r) / 65536, where adding u in float32 would round up codes of
/// 128 and more.
void quantise(const float* accumulated, float mid, float minimum, float gap, std::uint32_t levels, const RandomKey& key,
              std::int64_t n, std::uint8_t* codes) {
  // 1 / gap overflows for the smallest gaps: lift the difference first. Both factors are powers of two, hence exact.
  const float lift = gap < 0x1p-100F ? 0x1p64F : 1.0F;
  const F32x16 factor = splat(mid);
  const F32x16 origin = splat(minimum);
  const F32x16 lifted = splat(lift);
  const F32x16 inverse = splat(65536.0F / (gap * lift));
  for (std::int64_t begin = 0; begin < n; begin += 128) {
    U32x16 words[4];
    draw(key, key.coordinate + static_cast<std::uint64_t>(begin), words);
    for (int j = 0; j < 8; ++j) {
      const std::int64_t i = begin + 16 * j;
      if (i >= n) break;
      const F32x16 x = i + 16 <= n ? load(accumulated + i) : load_first(accumulated + i, n - i);
      const F32x16 y = x * factor;
      const U32x16 random = j % 2 == 0 ? words[j / 2] & 0xffffU : words[j / 2] >> 16;
      store_bytes(codes + i, at_most((nearest((y - origin) * lifted * inverse) + random) >> 16, levels));
    }
  }
}

CASYNC_INLINE F32x16 floats_of(const std::uint8_t* codes) {
  F32x16 out;
#if defined(__AVX512BW__)
  out.r[0] = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
#elif defined(__AVX2__)
  for (int k = 0; k < kRegisters; ++k)
    out.r[k] =
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + k * kLanes))));
#else
  for (int k = 0; k < kRegisters; ++k) {
    ByteRegister bytes;
    __builtin_memcpy(&bytes, codes + k * kLanes, sizeof bytes);
    out.r[k] = __builtin_convertvector(__builtin_convertvector(bytes, IntRegister), FloatRegister);
  }
#endif
  return out;
}

/// Decodes one unit's payload: minimum + gap * code.
template <int kBits>
class CodePayload {
 public:
  CASYNC_INLINE CodePayload(const std::byte* payload, std::int64_t /*ahead*/) : packed_(payload + kHeader) {
    float header[2];
    __builtin_memcpy(header, payload, kHeader);
    minimum_ = splat(header[0]);
    gap_ = splat(header[1]);
#if defined(__AVX512BW__)
    if constexpr (kBits < 8) {
      const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const __m512i code = _mm512_and_si512(lane, _mm512_set1_epi32((1 << kBits) - 1));
      table_ = minimum_ + gap_ * F32x16{{_mm512_cvtepi32_ps(code)}};
    }
#endif
  }

  CASYNC_INLINE F32x16 at(std::int64_t i) const {
    if constexpr (kBits == 8) return minimum_ + gap_ * floats_of(reinterpret_cast<const std::uint8_t*>(packed_ + i));
#if defined(__AVX512BW__)
    // Look the codes up in one register that holds the value of each; an index counts by its lowest four bits alone,
    // and for codes of two bits the table repeats.
    __m512i codes;
    if constexpr (kBits == 2) {
      std::uint32_t bits = 0;
      __builtin_memcpy(&bits, packed_ + i / 4, 4);
      codes = _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(bits)),
                                _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0));
    } else {
      std::uint64_t bits = 0;
      __builtin_memcpy(&bits, packed_ + i / 2, 8);
      const __m512i halves = _mm512_permutexvar_epi32(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                                                      _mm512_set1_epi64(static_cast<long long>(bits)));
      codes = _mm512_srlv_epi32(halves, _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0));
    }
    return {{_mm512_permutexvar_ps(codes, table_.r[0])}};
#else
    std::uint8_t codes[16];
    for (int j = 0; j < 2 * kBits; ++j) {  // each byte of the payload at once
      const auto packed = static_cast<std::uint32_t>(packed_[i * kBits / 8 + j]);
      if constexpr (kBits == 2) {
        const std::uint32_t four = (packed | packed << 6 | packed << 12 | packed << 18) & 0x03030303U;
        __builtin_memcpy(codes + 4 * j, &four, 4);
      } else {
        const auto two = static_cast<std::uint16_t>((packed | packed << 4) & 0x0f0fU);
        __builtin_memcpy(codes + 2 * j, &two, 2);
      }
    }
    return minimum_ + gap_ * floats_of(codes);
#endif
  }

  CASYNC_INLINE float one(std::int64_t i) const {
    const unsigned code = static_cast<unsigned>(packed_[i * kBits / 8]) >> (i * kBits % 8) & ((1U << kBits) - 1U);
    return minimum_.r[0][0] + gap_.r[0][0] * static_cast<float>(code);
  }

 private:
  const std::byte* packed_;
  F32x16 minimum_;
  F32x16 gap_;
#if defined(__AVX512BW__)
  F32x16 table_;
#endif
};

CASYNC_INLINE bool finite(float value) { return value - value == 0.0F; }

}  // namespace

bool terngrad_encode(const float* accumulated, float mid, std::int64_t n, int bits, const RandomKey& key,
                     std::byte* payload) {
  const std::uint32_t levels = (1U << bits) - 1U;
  const Span span = find_span(accumulated, mid, n);
  float header[2]{span.minimum, (span.maximum - span.minimum) / static_cast<float>(levels)};
  const bool nonfinite = span.nonfinite || !finite(header[1]);  // the range itself may leave float32
  if (nonfinite) header[0] = header[1] = __builtin_nanf("");
  __builtin_memcpy(payload, header, kHeader);

  const std::int64_t bytes = (n * bits + 7) / 8;
  if (nonfinite || header[1] == 0.0F) {
    __builtin_memset(payload + kHeader, 0, static_cast<std::size_t>(bytes));
    return nonfinite;
  }
  alignas(64) std::uint8_t codes[kUnit + 16];
  quantise(accumulated, mid, header[0], header[1], levels, key, n, codes);
  __builtin_memset(codes + n, 0, 16);  // the last byte's unused bits are zero
  if (bits == 2)
    pack<2>(codes, bytes, payload + kHeader);
  else if (bits == 4)
    pack<4>(codes, bytes, payload + kHeader);
  else
    __builtin_memcpy(payload + kHeader, codes, static_cast<std::size_t>(bytes));
  return false;
}

bool terngrad_merge2(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<CodePayload<2>>(sources, count, out, n, streaming);
}
bool terngrad_merge4(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<CodePayload<4>>(sources, count, out, n, streaming);
}
bool terngrad_merge8(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return merge_fused<CodePayload<8>>(sources, count, out, n, streaming);
}

}  // namespace casync::codec::CASYNC_KERNEL_ISA
