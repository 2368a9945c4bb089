#pragma once

#include "codec/cpu/kernels/codes.hpp"
#include "codec/cpu/kernels/fused.hpp"
#include "codec/cpu/kernels/lanes.hpp"

/// Decoding of payloads that hold one code of 1, 2, 4 or 8 bits for each element, after a header of scalars.
///
/// `Decoder` is what CompLL's `decode` says of one element: constructed from the payload's header and the facts, it
/// gives the values of sixteen codes, or of one; kHeader is the header's length in bytes.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE I32x16 ints_of(const std::uint8_t* codes) {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    out.r[k] =
        __builtin_bit_cast(IntRegister, _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
#elif defined(__AVX2__)
    out.r[k] = __builtin_bit_cast(
        IntRegister, _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + k * kLanes))));
#else
    ByteRegister bytes;
    __builtin_memcpy(&bytes, codes + k * kLanes, sizeof bytes);
    out.r[k] = __builtin_convertvector(bytes, IntRegister);
#endif
  }
  return out;
}

/// Sixteen codes from element i on; i is a multiple of 16.
template <int kBits>
CASYNC_INLINE I32x16 codes_at(const std::byte* packed, std::int64_t i) {
  if constexpr (kBits == 8) return ints_of(reinterpret_cast<const std::uint8_t*>(packed + i));
  std::uint8_t codes[16];
  for (int j = 0; j < 2 * kBits; ++j) {  // each byte of the payload at once
    const auto byte = static_cast<std::uint32_t>(packed[i * kBits / 8 + j]);
    if constexpr (kBits == 2) {
      const std::uint32_t four = (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303U;
      __builtin_memcpy(codes + 4 * j, &four, 4);
    } else {
      const auto two = static_cast<std::uint16_t>((byte | byte << 4) & 0x0f0fU);
      __builtin_memcpy(codes + 2 * j, &two, 2);
    }
  }
  return ints_of(codes);
}

template <int kBits>
CASYNC_INLINE std::int32_t code_at(const std::byte* packed, std::int64_t i) {
  return static_cast<std::int32_t>(static_cast<unsigned>(packed[i * kBits / 8]) >> (i * kBits % 8) &
                                   ((1U << kBits) - 1U));
}

/// With kDivided, values are divided by `divisor`.
template <typename Decoder, int kBits, bool kDivided = false>
class Coded {
 public:
  CASYNC_INLINE Coded(const MergeSource& source, std::int64_t /*ahead*/) : Coded(source.payload, *source.facts, 1.0F) {}
  CASYNC_INLINE Coded(const std::byte* payload, const Facts& facts, float divisor)
      : decode_(payload, facts), packed_(payload + Decoder::kHeader), divisor_(lanes(divisor)) {
    if constexpr (kBits == 1) {
      yes_ = divided(lanes(decode_(true)));
      no_ = divided(lanes(decode_(false)));
    }
#if defined(__AVX512BW__)
    if constexpr (kBits == 2 || kBits == 4) {
      I32x16 code = lane_numbers();
      code.r[0] &= (1 << kBits) - 1;
      table_ = divided(decode_(code));
    }
#endif
  }

  /// The values of elements i ... i + 15.
  CASYNC_INLINE F32x16 at(std::int64_t i) const {
    if constexpr (kBits == 1) {
      std::uint16_t bits = 0;
      __builtin_memcpy(&bits, packed_ + i / 8, 2);
      return select(mask_of(bits), yes_, no_);
    }
#if defined(__AVX512BW__)
    // Look the codes up in one register that holds the value of each; an index counts by its lowest four bits alone,
    // and for codes of two bits the table repeats.
    if constexpr (kBits == 2) {
      std::uint32_t bits = 0;
      __builtin_memcpy(&bits, packed_ + i / 4, 4);
      const __m512i codes =
          _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(bits)),
                            _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0));
      return {{_mm512_permutexvar_ps(codes, table_.r[0])}};
    }
    if constexpr (kBits == 4) {
      std::uint64_t bits = 0;
      __builtin_memcpy(&bits, packed_ + i / 2, 8);
      const __m512i halves = _mm512_permutexvar_epi32(_mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                                                      _mm512_set1_epi64(static_cast<long long>(bits)));
      const __m512i codes =
          _mm512_srlv_epi32(halves, _mm512_set_epi32(28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0));
      return {{_mm512_permutexvar_ps(codes, table_.r[0])}};
    }
#endif
    if constexpr (kBits > 1) return divided(decode_(codes_at<kBits>(packed_, i)));
  }

  CASYNC_INLINE float one(std::int64_t i) const {
    float value = 0;
    if constexpr (kBits == 1)
      value = decode_(code_at<1>(packed_, i) != 0);
    else
      value = decode_(code_at<kBits>(packed_, i));
    return kDivided ? value / divisor_.r[0][0] : value;
  }

 private:
  CASYNC_INLINE F32x16 divided(const F32x16& values) const { return kDivided ? divide(values, divisor_) : values; }

  Decoder decode_;
  const std::byte* packed_;
  F32x16 divisor_;
  F32x16 yes_;
  F32x16 no_;
  F32x16 table_;
};

/// residual = accumulated + residual - D / mid over one unit. (Copies of what `job` holds, here and in generated code:
/// for all the compiler knows, a store to memory might change it.)
template <typename Decoder, int kBits>
CASYNC_INLINE void leave_residual(const UnitJob& job) {
  const Coded<Decoder, kBits, true> decoded(job.payload, job.facts, job.mid);
  const float* const accumulated = job.accumulated;
  float* const residual = job.residual;
  const std::int64_t n = job.facts.n;
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const F32x16 x = load(accumulated + i) + load(residual + i);
    store(residual + i, x - decoded.at(i));
  }
  for (; i < n; ++i) residual[i] = accumulated[i] + residual[i] - decoded.one(i);
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
