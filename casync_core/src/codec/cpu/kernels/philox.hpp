#pragma once

#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// Philox4x32-7 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3 and table 2), sixteen
/// counters at a time. A call yields 16 x 4 words = 128 draws of 16 bits, for 128 consecutive coordinates:
///   coordinate i of the gradient uses counter word 0 = (i / 128) * 16 + i % 16, output word (i / 16 % 8) / 2, and of
///   that the low half if i / 16 is even, else the high half.
/// So a draw depends on the coordinate alone, and sixteen neighbours are one vector without a shuffle.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE WideRegister multiply_low_halves(WideRegister a, std::uint32_t by) {
#if defined(__AVX512BW__)
  return __builtin_bit_cast(WideRegister, _mm512_mul_epu32(__builtin_bit_cast(__m512i, a), _mm512_set1_epi64(by)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(WideRegister, _mm256_mul_epu32(__builtin_bit_cast(__m256i, a), _mm256_set1_epi64x(by)));
#elif defined(__SSE2__)
  return __builtin_bit_cast(WideRegister, _mm_mul_epu32(__builtin_bit_cast(__m128i, a), _mm_set1_epi64x(by)));
#else
  return (a & 0xffffffffU) * by;
#endif
}

/// One counter per 64-bit lane, since products need 64 bits; the upper halves hold leftovers that the multiplication
/// ignores, which spares interleaving in each round.
CASYNC_INLINE void philox_rounds(WideRegister (&c)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 7; ++round) {
    const WideRegister product0 = multiply_low_halves(c[0], 0xD2511F53U);
    const WideRegister product1 = multiply_low_halves(c[2], 0xCD9E8D57U);
    c[0] = (product1 >> 32) ^ c[1] ^ key0;
    c[1] = product1;
    c[2] = (product0 >> 32) ^ c[3] ^ key1;
    c[3] = product0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

/// words[w] = output word w of the sixteen counters that serve the 128 coordinates from `coordinate`, a multiple of
/// 128.
CASYNC_INLINE void draw(const RandomKey& key, std::uint64_t coordinate, U32x16 (&words)[4]) {
  const std::uint64_t counter = coordinate / 8;
  const std::uint64_t upper = key.round | (counter >> 32) << 8;
  for (int k = 0; k < kRegisters; ++k) {
    WideRegister lane;
    for (int i = 0; i < kLanes / 2; ++i) lane[i] = static_cast<std::uint64_t>(k * kLanes + 2 * i);
    WideRegister even[4]{lane + (counter & 0xffffffffU), WideRegister{} + key.sequence, WideRegister{} + upper,
                         WideRegister{} + key.stream};
    WideRegister odd[4]{even[0] + 1, even[1], even[2], even[3]};
    const auto key0 = static_cast<std::uint32_t>(key.name_hash);
    const auto key1 = static_cast<std::uint32_t>(key.name_hash >> 32);
    philox_rounds(even, key0, key1);
    philox_rounds(odd, key0, key1);
    for (int w = 0; w < 4; ++w)
      words[w].r[k] = __builtin_bit_cast(UintRegister, (even[w] & 0xffffffffU) | (odd[w] << 32));
  }
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
