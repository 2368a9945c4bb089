#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/// Sixteen lanes, whatever the processor: one AVX-512 register, two AVX2 ones or four of SSE2 or NEON. The kernels are
/// written once on these types and compiled once per instruction set, in namespace CASYNC_KERNEL_ISA; all is of
/// internal linkage, so no copy made for a newer processor can be linked into an older one's code. Semantics are those
/// of the scalar operation per lane.
#define CASYNC_INLINE __attribute__((always_inline, unused)) inline

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "payloads are little-endian and are read and written in place");

namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kRegisters = 64 / kRegisterBytes;
constexpr int kLanes = kRegisterBytes / 4;

using FloatRegister = float __attribute__((vector_size(kRegisterBytes)));
using IntRegister = std::int32_t __attribute__((vector_size(kRegisterBytes)));
using UintRegister = std::uint32_t __attribute__((vector_size(kRegisterBytes)));
using WideRegister = std::uint64_t __attribute__((vector_size(kRegisterBytes)));
using ShortRegister = std::uint16_t __attribute__((vector_size(kRegisterBytes / 2)));
using ByteRegister = std::uint8_t __attribute__((vector_size(kRegisterBytes / 4)));

struct F32x16 {
  FloatRegister r[kRegisters];
};
struct U32x16 {
  UintRegister r[kRegisters];
};
#if defined(__AVX512BW__)
struct Mask16 {
  __mmask16 r;
};
#else
struct Mask16 {
  IntRegister r[kRegisters];  // -1 or 0 per lane
};
#endif

// --- constructing, loading, storing

CASYNC_INLINE F32x16 splat(float value) {
  F32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = value - FloatRegister{};  // not a sum, which would make +0 of -0
  return out;
}
CASYNC_INLINE F32x16 load(const float* from) {
  F32x16 out;
  for (int k = 0; k < kRegisters; ++k) __builtin_memcpy(&out.r[k], from + k * kLanes, kRegisterBytes);
  return out;
}
/// Not by memcpy, which GCC 12 turns into pieces of 16 bytes by way of the stack where a register has 32. And a
/// typedef: clang 14 takes no notice of the alignment that a `using` states.
CASYNC_INLINE void store(float* to, const F32x16& a) {
  typedef float Unaligned __attribute__((vector_size(kRegisterBytes), aligned(1), may_alias));
  for (int k = 0; k < kRegisters; ++k) *reinterpret_cast<Unaligned*>(to + k * kLanes) = a.r[k];
}
/// 64 or 32 bytes past the caches; `to` is aligned to as much.
CASYNC_INLINE void stream(void* to, const F32x16& a) {
#if defined(__AVX512BW__)
  _mm512_stream_ps(static_cast<float*>(to), a.r[0]);
#elif defined(__AVX2__)
  for (int k = 0; k < kRegisters; ++k) _mm256_stream_ps(static_cast<float*>(to) + k * kLanes, a.r[k]);
#elif defined(__SSE2__)
  for (int k = 0; k < kRegisters; ++k) _mm_stream_ps(static_cast<float*>(to) + k * kLanes, a.r[k]);
#else
  __builtin_memcpy(to, &a, 64);
#endif
}
/// 32 bytes past the caches, in the pieces in which they were just written: a load that spans two stores waits for
/// both.
CASYNC_INLINE void stream_half(void* to, const void* from) {
#if defined(__AVX512BW__)
  _mm256_stream_si256(static_cast<__m256i*>(to), _mm256_loadu_si256(static_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
  for (int k = 0; k < 2; ++k)
    _mm_stream_si128(static_cast<__m128i*>(to) + k, _mm_loadu_si128(static_cast<const __m128i*>(from) + k));
#elif defined(__SSE2__)
  for (int k = 0; k < 4; ++k) {
    long long piece = 0;
    __builtin_memcpy(&piece, static_cast<const char*>(from) + 8 * k, sizeof piece);
    _mm_stream_si64(static_cast<long long*>(to) + k, piece);
  }
#else
  __builtin_memcpy(to, from, 32);
#endif
}

/// The first `count` lanes, and nothing behind them is touched; the others are zero.
CASYNC_INLINE F32x16 load_first(const float* from, std::int64_t count) {
  F32x16 out{};
#if defined(__AVX512BW__)
  out.r[0] = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1U), from);
#else
  __builtin_memcpy(&out, from, static_cast<std::size_t>(count) * sizeof(float));
#endif
  return out;
}
CASYNC_INLINE void store_first(float* to, const F32x16& a, std::int64_t count) {
#if defined(__AVX512BW__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1U << count) - 1U), a.r[0]);
#else
  __builtin_memcpy(to, &a, static_cast<std::size_t>(count) * sizeof(float));
#endif
}

// --- arithmetic

CASYNC_INLINE F32x16 operator+(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] += b.r[k];
  return a;
}
CASYNC_INLINE F32x16 operator-(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] -= b.r[k];
  return a;
}
CASYNC_INLINE F32x16 operator*(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] *= b.r[k];
  return a;
}
CASYNC_INLINE F32x16 operator/(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] /= b.r[k];
  return a;
}
CASYNC_INLINE U32x16 operator+(U32x16 a, const U32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] += b.r[k];
  return a;
}
CASYNC_INLINE U32x16 operator&(U32x16 a, std::uint32_t b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] &= b;
  return a;
}
CASYNC_INLINE U32x16 operator>>(U32x16 a, int count) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] >>= count;
  return a;
}
CASYNC_INLINE F32x16 as_floats(const U32x16& a) {
  F32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(FloatRegister, a.r[k]);
  return out;
}
CASYNC_INLINE U32x16 as_bits(const F32x16& a) {
  U32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(UintRegister, a.r[k]);
  return out;
}

/// a < b ? a : b, which fixes the result for zeros of either sign.
CASYNC_INLINE F32x16 smaller(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    a.r[k] = _mm512_min_ps(a.r[k], b.r[k]);
#elif defined(__AVX2__)
    a.r[k] = _mm256_min_ps(a.r[k], b.r[k]);
#elif defined(__SSE2__)
    a.r[k] = _mm_min_ps(a.r[k], b.r[k]);
#else
    a.r[k] = a.r[k] < b.r[k] ? a.r[k] : b.r[k];
#endif
  }
  return a;
}
CASYNC_INLINE F32x16 larger(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    a.r[k] = _mm512_max_ps(a.r[k], b.r[k]);
#elif defined(__AVX2__)
    a.r[k] = _mm256_max_ps(a.r[k], b.r[k]);
#elif defined(__SSE2__)
    a.r[k] = _mm_max_ps(a.r[k], b.r[k]);
#else
    a.r[k] = a.r[k] > b.r[k] ? a.r[k] : b.r[k];
#endif
  }
  return a;
}

// --- masks

/// Bit i = lane i.
CASYNC_INLINE std::uint16_t bits_of(const Mask16& mask) {
#if defined(__AVX512BW__)
  return mask.r;
#elif defined(__AVX2__)
  const int low = _mm256_movemask_ps(__builtin_bit_cast(__m256, mask.r[0]));
  const int high = _mm256_movemask_ps(__builtin_bit_cast(__m256, mask.r[1]));
  return static_cast<std::uint16_t>(low | high << 8);
#elif defined(__SSE2__)
  int bits = 0;
  for (int k = 0; k < kRegisters; ++k) bits |= _mm_movemask_ps(__builtin_bit_cast(__m128, mask.r[k])) << (4 * k);
  return static_cast<std::uint16_t>(bits);
#else
  std::uint32_t bits = 0;
  for (int k = 0; k < kRegisters; ++k)
    for (int lane = 0; lane < kLanes; ++lane)
      bits |= (static_cast<std::uint32_t>(mask.r[k][lane]) & 1U) << (k * kLanes + lane);
  return static_cast<std::uint16_t>(bits);
#endif
}

CASYNC_INLINE Mask16 mask_of(std::uint16_t bits) {
  Mask16 out;
#if defined(__AVX512BW__)
  out.r = bits;
#else
  IntRegister lane_bit;
  for (int lane = 0; lane < kLanes; ++lane) lane_bit[lane] = 1 << lane;
  for (int k = 0; k < kRegisters; ++k)
    out.r[k] = ((IntRegister{} + static_cast<std::int32_t>(bits >> (k * kLanes))) & lane_bit) == lane_bit;
#endif
  return out;
}

CASYNC_INLINE F32x16 select(const Mask16& mask, const F32x16& yes, const F32x16& no) {
  F32x16 out;
#if defined(__AVX512BW__)
  out.r[0] = _mm512_mask_blend_ps(mask.r, no.r[0], yes.r[0]);
#else
  for (int k = 0; k < kRegisters; ++k) out.r[k] = mask.r[k] ? yes.r[k] : no.r[k];
#endif
  return out;
}

// --- folding lanes

struct Add {
  template <typename T>
  CASYNC_INLINE static T of(const T& a, const T& b) {
    return a + b;
  }
};
struct Smaller {
  template <typename T>
  CASYNC_INLINE static T of(const T& a, const T& b) {
    return a < b ? a : b;
  }
};
struct Larger {
  template <typename T>
  CASYNC_INLINE static T of(const T& a, const T& b) {
    return a > b ? a : b;
  }
};

/// Lanes i and i + 8, then i + 4, i + 2, i + 1: the same tree at every level.
template <typename Operation>
CASYNC_INLINE float fold(const F32x16& a) {
  using Four = float __attribute__((vector_size(16)));
  Four quarter[4];
  __builtin_memcpy(quarter, &a, 64);
  const Four low = Operation::of(quarter[0], quarter[2]);
  const Four high = Operation::of(quarter[1], quarter[3]);
  const Four last = Operation::of(low, high);
  return Operation::of(Operation::of(last[0], last[2]), Operation::of(last[1], last[3]));
}

// --- noticing NaN and Inf

/// Keeps the largest magnitude it saw, as bits; NaN is larger than Inf, and Inf than any number.
class FiniteCheck {
 public:
  CASYNC_INLINE void see(const F32x16& a) {
    const U32x16 magnitude = as_bits(a) & 0x7fffffffU;
    for (int k = 0; k < kRegisters; ++k) {
      const auto bits = __builtin_bit_cast(IntRegister, magnitude.r[k]);
      largest_[k] = largest_[k] > bits ? largest_[k] : bits;
    }
  }
  /// Whether some magnitude had bits of at least `limit`, by default those of Inf.
  CASYNC_INLINE bool failed(std::int32_t limit = 0x7f800000) const {
    using Four = std::int32_t __attribute__((vector_size(16)));
    Four quarter[4];
    __builtin_memcpy(quarter, &largest_, 64);
    const Four low = Larger::of(quarter[0], quarter[1]);
    const Four largest = Larger::of(low, Larger::of(quarter[2], quarter[3]));
    return largest[0] >= limit || largest[1] >= limit || largest[2] >= limit || largest[3] >= limit;
  }

 private:
  IntRegister largest_[kRegisters]{};
};

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
