#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// Codes of 2, 4 or 8 bits, from the lowest bit of each byte upwards.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE void store_bytes(std::uint8_t* to, const U32x16& a) {
#if defined(__AVX512BW__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__builtin_bit_cast(__m512i, a.r[0])));
#else
  for (int k = 0; k < kRegisters; ++k) {
    const ByteRegister bytes = __builtin_convertvector(a.r[k], ByteRegister);
    __builtin_memcpy(to + k * kLanes, &bytes, sizeof bytes);
  }
#endif
}

/// Packs `bytes` bytes, reading bytes * 8 / kBits codes.
template <int kBits>
CASYNC_INLINE void pack(const std::uint8_t* codes, std::int64_t bytes, std::byte* to) {
  for (std::int64_t i = 0; i < bytes; ++i) {
    if constexpr (kBits == 2) {
      std::uint32_t four = 0;
      __builtin_memcpy(&four, codes + 4 * i, 4);
      to[i] = static_cast<std::byte>(four | four >> 6 | four >> 12 | four >> 18);
    } else {
      std::uint16_t two = 0;
      __builtin_memcpy(&two, codes + 2 * i, 2);
      to[i] = static_cast<std::byte>(two | two >> 4);
    }
  }
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
