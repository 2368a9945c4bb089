#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// What code generated from CompLL is made of (docs/compll.md): each operation of the language under one name, over
/// single values (float, std::int32_t, bool) and over sixteen lanes (F32x16, I32x16, Mask16). Integers wrap around and
/// conversions saturate, at every instruction set alike.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

struct I32x16 {
  IntRegister r[kRegisters];
};

// --- one value in all lanes

CASYNC_INLINE F32x16 lanes(float value) { return splat(value); }
CASYNC_INLINE I32x16 lanes(std::int32_t value) {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = IntRegister{} + value;
  return out;
}
CASYNC_INLINE Mask16 lanes(bool value) {
  Mask16 out;
#if defined(__AVX512BW__)
  out.r = value ? 0xffff : 0;
#else
  for (int k = 0; k < kRegisters; ++k) out.r[k] = IntRegister{} - (value ? 1 : 0);
#endif
  return out;
}
/// 0, 1, ..., 15.
CASYNC_INLINE I32x16 lane_numbers() {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k)
    for (int lane = 0; lane < kLanes; ++lane) out.r[k][lane] = k * kLanes + lane;
  return out;
}
/// True in the first `count` lanes.
CASYNC_INLINE Mask16 first_lanes(std::int64_t count) { return mask_of(static_cast<std::uint16_t>((1U << count) - 1U)); }

// --- comparison: IEEE, false where a side is NaN, but for not_equal

#define CASYNC_COMPARE(name, sign, predicate)                                  \
  CASYNC_INLINE bool name(float a, float b) { return a sign b; }               \
  CASYNC_INLINE bool name(std::int32_t a, std::int32_t b) { return a sign b; } \
  CASYNC_INLINE Mask16 name(const F32x16& a, const F32x16& b) {                \
    Mask16 out;                                                                \
    CASYNC_COMPARE_FLOATS(sign, predicate)                                     \
    return out;                                                                \
  }                                                                            \
  CASYNC_INLINE Mask16 name(const I32x16& a, const I32x16& b) {                \
    Mask16 out;                                                                \
    CASYNC_COMPARE_INTS(sign)                                                  \
    return out;                                                                \
  }
#if defined(__AVX512BW__)
#define CASYNC_COMPARE_FLOATS(sign, predicate) out.r = _mm512_cmp_ps_mask(a.r[0], b.r[0], predicate);
#define CASYNC_COMPARE_INTS(sign) out.r = _mm512_movepi32_mask(__builtin_bit_cast(__m512i, a.r[0] sign b.r[0]));
#else
#define CASYNC_COMPARE_FLOATS(sign, predicate) \
  for (int k = 0; k < kRegisters; ++k) out.r[k] = a.r[k] sign b.r[k];
#define CASYNC_COMPARE_INTS(sign) \
  for (int k = 0; k < kRegisters; ++k) out.r[k] = a.r[k] sign b.r[k];
#endif
CASYNC_COMPARE(less, <, _CMP_LT_OQ)
CASYNC_COMPARE(greater, >, _CMP_GT_OQ)
CASYNC_COMPARE(at_most, <=, _CMP_LE_OQ)
CASYNC_COMPARE(at_least, >=, _CMP_GE_OQ)
CASYNC_COMPARE(equal, ==, _CMP_EQ_OQ)
CASYNC_COMPARE(not_equal, !=, _CMP_NEQ_UQ)
#undef CASYNC_COMPARE_INTS
#undef CASYNC_COMPARE_FLOATS
#undef CASYNC_COMPARE

// --- logic and choice

CASYNC_INLINE bool both(bool a, bool b) { return a && b; }
CASYNC_INLINE bool either(bool a, bool b) { return a || b; }
CASYNC_INLINE bool negate(bool a) { return !a; }
CASYNC_INLINE Mask16 both(Mask16 a, const Mask16& b) {
#if defined(__AVX512BW__)
  a.r &= b.r;
#else
  for (int k = 0; k < kRegisters; ++k) a.r[k] &= b.r[k];
#endif
  return a;
}
CASYNC_INLINE Mask16 either(Mask16 a, const Mask16& b) {
#if defined(__AVX512BW__)
  a.r |= b.r;
#else
  for (int k = 0; k < kRegisters; ++k) a.r[k] |= b.r[k];
#endif
  return a;
}
CASYNC_INLINE Mask16 negate(Mask16 a) {
#if defined(__AVX512BW__)
  a.r = static_cast<__mmask16>(~a.r);
#else
  for (int k = 0; k < kRegisters; ++k) a.r[k] = ~a.r[k];
#endif
  return a;
}

CASYNC_INLINE float choose(bool condition, float yes, float no) { return condition ? yes : no; }
CASYNC_INLINE std::int32_t choose(bool condition, std::int32_t yes, std::int32_t no) { return condition ? yes : no; }
CASYNC_INLINE bool choose(bool condition, bool yes, bool no) { return condition ? yes : no; }
CASYNC_INLINE F32x16 choose(const Mask16& mask, const F32x16& yes, const F32x16& no) { return select(mask, yes, no); }
CASYNC_INLINE I32x16 choose(const Mask16& mask, const I32x16& yes, const I32x16& no) {
  I32x16 out;
#if defined(__AVX512BW__)
  out.r[0] = __builtin_bit_cast(IntRegister, _mm512_mask_blend_epi32(mask.r, __builtin_bit_cast(__m512i, no.r[0]),
                                                                     __builtin_bit_cast(__m512i, yes.r[0])));
#else
  for (int k = 0; k < kRegisters; ++k) out.r[k] = mask.r[k] ? yes.r[k] : no.r[k];
#endif
  return out;
}
CASYNC_INLINE Mask16 choose(const Mask16& mask, const Mask16& yes, const Mask16& no) {
  return either(both(mask, yes), both(negate(mask), no));
}

// --- arithmetic

CASYNC_INLINE float add(float a, float b) { return a + b; }
CASYNC_INLINE float subtract(float a, float b) { return a - b; }
CASYNC_INLINE float multiply(float a, float b) { return a * b; }
CASYNC_INLINE float divide(float a, float b) { return a / b; }
CASYNC_INLINE float minus(float a) { return -a; }
CASYNC_INLINE F32x16 add(const F32x16& a, const F32x16& b) { return a + b; }
CASYNC_INLINE F32x16 subtract(const F32x16& a, const F32x16& b) { return a - b; }
CASYNC_INLINE F32x16 multiply(const F32x16& a, const F32x16& b) { return a * b; }
CASYNC_INLINE F32x16 divide(F32x16 a, const F32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] /= b.r[k];
  return a;
}
CASYNC_INLINE F32x16 minus(F32x16 a) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] = -a.r[k];
  return a;
}
CASYNC_INLINE float magnitude(float a) { return __builtin_fabsf(a); }
CASYNC_INLINE F32x16 magnitude(const F32x16& a) { return as_floats(as_bits(a) & 0x7fffffffU); }

CASYNC_INLINE std::uint32_t bits(std::int32_t a) { return static_cast<std::uint32_t>(a); }
CASYNC_INLINE std::int32_t add(std::int32_t a, std::int32_t b) { return static_cast<std::int32_t>(bits(a) + bits(b)); }
CASYNC_INLINE std::int32_t subtract(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) - bits(b));
}
CASYNC_INLINE std::int32_t multiply(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) * bits(b));
}
CASYNC_INLINE std::int32_t divide(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  return b == -1 ? subtract(0, a) : a / b;
}
CASYNC_INLINE std::int32_t remainder(std::int32_t a, std::int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
CASYNC_INLINE std::int32_t minus(std::int32_t a) { return subtract(0, a); }
CASYNC_INLINE std::int32_t shift_left(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) << (bits(b) & 31U));
}
CASYNC_INLINE std::int32_t shift_right(std::int32_t a, std::int32_t b) { return a >> (bits(b) & 31U); }
CASYNC_INLINE std::int32_t bit_and(std::int32_t a, std::int32_t b) { return a & b; }
CASYNC_INLINE std::int32_t bit_or(std::int32_t a, std::int32_t b) { return a | b; }
CASYNC_INLINE std::int32_t bit_xor(std::int32_t a, std::int32_t b) { return a ^ b; }
#define CASYNC_WRAPPING(name, sign)                                \
  CASYNC_INLINE I32x16 name(I32x16 a, const I32x16& b) {           \
    for (int k = 0; k < kRegisters; ++k) {                         \
      const auto left = __builtin_bit_cast(UintRegister, a.r[k]);  \
      const auto right = __builtin_bit_cast(UintRegister, b.r[k]); \
      a.r[k] = __builtin_bit_cast(IntRegister, left sign right);   \
    }                                                              \
    return a;                                                      \
  }
CASYNC_WRAPPING(add, +)
CASYNC_WRAPPING(subtract, -)
CASYNC_WRAPPING(multiply, *)
CASYNC_WRAPPING(bit_and, &)
CASYNC_WRAPPING(bit_or, |)
CASYNC_WRAPPING(bit_xor, ^)
#undef CASYNC_WRAPPING

/// a < b ? a : b and a > b ? a : b.
CASYNC_INLINE float smaller(float a, float b) { return a < b ? a : b; }
CASYNC_INLINE float larger(float a, float b) { return a > b ? a : b; }
CASYNC_INLINE std::int32_t smaller(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
CASYNC_INLINE std::int32_t larger(std::int32_t a, std::int32_t b) { return a > b ? a : b; }
CASYNC_INLINE I32x16 smaller(I32x16 a, const I32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] = a.r[k] < b.r[k] ? a.r[k] : b.r[k];
  return a;
}
CASYNC_INLINE I32x16 larger(I32x16 a, const I32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] = a.r[k] > b.r[k] ? a.r[k] : b.r[k];
  return a;
}

// --- conversion

CASYNC_INLINE float to_float(std::int32_t a) { return static_cast<float>(a); }
CASYNC_INLINE float to_float(bool a) { return a ? 1.0F : 0.0F; }
CASYNC_INLINE std::int32_t to_int(bool a) { return a ? 1 : 0; }
/// Towards zero, saturating, NaN to 0.
CASYNC_INLINE std::int32_t to_int(float a) {
  if (!(a == a)) return 0;
  if (a >= 0x1p31F) return 0x7fffffff;
  return a < -0x1p31F ? -0x7fffffff - 1 : static_cast<std::int32_t>(a);
}
CASYNC_INLINE bool to_bit(std::int32_t a) { return a > 0; }  // saturating
CASYNC_INLINE bool to_bit(float a) { return a >= 1.0F; }
CASYNC_INLINE F32x16 to_float(const I32x16& a) {
  F32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_convertvector(a.r[k], FloatRegister);
  return out;
}
CASYNC_INLINE F32x16 to_float(const Mask16& a) { return choose(a, lanes(1.0F), lanes(0.0F)); }
CASYNC_INLINE I32x16 to_int(const Mask16& a) { return choose(a, lanes(1), lanes(0)); }
CASYNC_INLINE I32x16 to_int(const F32x16& a) {
#if defined(__AVX512BW__)
  const __m512i inside = _mm512_maskz_cvttps_epi32(_mm512_cmp_ps_mask(a.r[0], a.r[0], _CMP_ORD_Q), a.r[0]);
  const __mmask16 high = _mm512_cmp_ps_mask(a.r[0], _mm512_set1_ps(0x1p31F), _CMP_GE_OQ);
  return {{__builtin_bit_cast(IntRegister, _mm512_mask_mov_epi32(inside, high, _mm512_set1_epi32(0x7fffffff)))}};
#else
  // What is left of [-2^31, 2^31) after the limits converts without a doubt; 2^31 itself is put in afterwards.
  const F32x16 inside = choose(at_least(a, lanes(-0x1p31F)), a, lanes(-0x1p31F));
  const Mask16 high = at_least(inside, lanes(0x1p31F));
  const F32x16 fits = choose(either(high, not_equal(a, a)), lanes(0.0F), inside);
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_convertvector(fits.r[k], IntRegister);
  return choose(high, lanes(0x7fffffff), out);
#endif
}
CASYNC_INLINE Mask16 to_bit(const I32x16& a) { return greater(a, lanes(0)); }
CASYNC_INLINE Mask16 to_bit(const F32x16& a) { return at_least(a, lanes(1.0F)); }

CASYNC_INLINE U32x16 unsigned_of(const I32x16& a) {
  U32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(UintRegister, a.r[k]);
  return out;
}

template <typename T>
CASYNC_INLINE T saturate(const T& a, std::int32_t least, std::int32_t most) {
  if constexpr (sizeof(T) == 4)
    return smaller(larger(a, least), most);
  else
    return smaller(larger(a, lanes(least)), lanes(most));
}

// --- random numbers

/// The sixteen draws, of 16 bits each, of the coordinates i ... i + 15; `words` are those of i / 128.
CASYNC_INLINE I32x16 draws_at(const U32x16 (&words)[4], int sixteenth) {
  const U32x16& word = words[sixteenth / 2];
  const U32x16 half = sixteenth % 2 == 0 ? word & 0xffffU : word >> 16;
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(IntRegister, half.r[k]);
  return out;
}

/// Nearest integer, ties to even; |a| < 2^31.
CASYNC_INLINE I32x16 nearest(const F32x16& a) {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) {
#if defined(__AVX512BW__)
    out.r[k] = __builtin_bit_cast(IntRegister, _mm512_cvtps_epi32(a.r[k]));
#elif defined(__AVX2__)
    out.r[k] = __builtin_bit_cast(IntRegister, _mm256_cvtps_epi32(a.r[k]));
#elif defined(__SSE2__)
    out.r[k] = __builtin_bit_cast(IntRegister, _mm_cvtps_epi32(a.r[k]));
#else
    for (int lane = 0; lane < kLanes; ++lane) out.r[k][lane] = static_cast<std::int32_t>(__builtin_rintf(a.r[k][lane]));
#endif
  }
  return out;
}

/// floor(z + u) held between `least` and `most`, u = (r + 0.5) / 65536, with 16 fraction bits: adding u in float32
/// would round up large z. Holding z does what holding the result would; NaN gives -32768.
CASYNC_INLINE I32x16 stochastic_floor(const F32x16& z, const I32x16& r, float least, float most) {
  const F32x16 held = larger(lanes(least), smaller(lanes(most), z));
  I32x16 out = add(nearest(held * lanes(65536.0F)), r);
  for (int k = 0; k < kRegisters; ++k) out.r[k] >>= 16;
  return out;
}

// --- choosing between a value and zero

CASYNC_INLINE float keep(bool condition, float value) { return condition ? value : 0.0F; }
CASYNC_INLINE float drop(bool condition, float value) { return condition ? 0.0F : value; }
CASYNC_INLINE F32x16 keep(const Mask16& mask, F32x16 value) {
#if defined(__AVX512BW__)
  value.r[0] = _mm512_maskz_mov_ps(mask.r, value.r[0]);
#else
  for (int k = 0; k < kRegisters; ++k)
    value.r[k] = __builtin_bit_cast(FloatRegister, __builtin_bit_cast(IntRegister, value.r[k]) & mask.r[k]);
#endif
  return value;
}
CASYNC_INLINE F32x16 drop(const Mask16& mask, const F32x16& value) { return keep(negate(mask), value); }

/// sum + keep(mask, value), for a sum that is not -0.
CASYNC_INLINE F32x16 add_where(const Mask16& mask, F32x16 sum, const F32x16& value) {
#if defined(__AVX512BW__)
  sum.r[0] = _mm512_mask_add_ps(sum.r[0], mask.r, sum.r[0], value.r[0]);
  return sum;
#else
  return sum + keep(mask, value);
#endif
}

/// Whether all that it saw was finite: anything else times zero is NaN, and stays in the sum.
class Finiteness {
 public:
  CASYNC_INLINE void see(const F32x16& a) { zeros_ = zeros_ + a * F32x16{}; }
  CASYNC_INLINE void see(float a) { zero_ += a * 0.0F; }
  CASYNC_INLINE bool lost() const { return zero_ != 0.0F || bits_of(not_equal(zeros_, zeros_)) != 0; }

 private:
  F32x16 zeros_{};
  float zero_ = 0;
};

CASYNC_INLINE bool finite(float value) { return value - value == 0.0F; }

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
