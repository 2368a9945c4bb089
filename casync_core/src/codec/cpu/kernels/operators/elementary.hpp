#pragma once

#include "codec/cpu/kernels/integers.hpp"
#include "codec/cpu/kernels/operators/rounding.hpp"

/// CompLL's exp2, log2 and cos: polynomials in float32, with every operation and its order written down, so that single
/// values, sixteen lanes and devices get the same bits. Coefficients minimise the largest error over the interval that
/// is left after range reduction, each rounded to float32 before the next was fitted.
///
/// Largest errors over all arguments, in units of the last place: exp2 1.08, log2 1.75; cos, up to |x| = 100, 2.5, and
/// up to 100,000 an absolute error of 1.2e-7.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE std::int32_t bit_pattern(float a) { return __builtin_bit_cast(std::int32_t, a); }
CASYNC_INLINE I32x16 bit_pattern(const F32x16& a) {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(IntRegister, a.r[k]);
  return out;
}
CASYNC_INLINE float of_pattern(std::int32_t a) { return __builtin_bit_cast(float, a); }
CASYNC_INLINE F32x16 of_pattern(const I32x16& a) { return as_floats(unsigned_of(a)); }

template <typename Int>
CASYNC_INLINE Int integer(std::int32_t value) {
  if constexpr (sizeof(Int) == sizeof(std::int32_t))
    return value;
  else
    return lanes(value);
}

/// c[0] + x (c[1] + x (c[2] + ...)).
template <typename T, int kTerms>
CASYNC_INLINE T polynomial(const T& x, const float (&c)[kTerms]) {
  T sum = constant<T>(c[kTerms - 1]);
  for (int i = kTerms - 2; i >= 0; --i) sum = add(multiply(sum, x), constant<T>(c[i]));
  return sum;
}

/// x rounded to a whole number, |x| < 2^22: the sum's lowest mantissa bits are that number.
constexpr float kWhole = 0x1.8p23F;
constexpr float kNan = __builtin_nanf("");
constexpr float kInfinity = __builtin_inff();

/// 2^x = 2^n 2^f with n whole and |f| <= 1/2. 2^n is applied as two factors: half of it alone neither overflows nor
/// underflows, so the product is rounded once.
template <typename T>
CASYNC_INLINE T exp2_of(const T& x) {
  constexpr float kTerms[]{0x1.62e43p-1F, 0x1.ebfbdcp-3F,  0x1.c6af7cp-5F,
                           0x1.3b2dep-7F, 0x1.5f082ep-10F, 0x1.416b52p-13F};
  const T held = larger(smaller(x, constant<T>(200.0F)), constant<T>(-200.0F));
  const T sum = add(held, constant<T>(kWhole));
  const T f = subtract(held, subtract(sum, constant<T>(kWhole)));
  const T power = add(constant<T>(1.0F), multiply(f, polynomial(f, kTerms)));
  using Int = decltype(bit_pattern(x));
  const Int n = subtract(bit_pattern(sum), integer<Int>(bit_pattern(kWhole)));
  const Int half = shift_right(n, integer<Int>(1));
  const auto two_to = [](const Int& e) __attribute__((always_inline)) {
    return of_pattern(shift_left(add(e, integer<Int>(127)), integer<Int>(23)));
  };
  const T scaled = multiply(multiply(power, two_to(half)), two_to(subtract(n, half)));
  return choose(equal(x, x), scaled, x);
}

/// log2 x = e + log2 m with m between the roots of 1/2 and 2, and log2 m = t q(t) with t = m - 1.
template <typename T>
CASYNC_INLINE T log2_of(const T& x) {
  constexpr float kTerms[]{0x1.715476p+0F, -0x1.715476p-1F, 0x1.ec7208p-2F,  -0x1.7156cap-2F, 0x1.2739b4p-2F,
                           -0x1.eb164p-3F, 0x1.abb432p-3F,  -0x1.8be26ap-3F, 0x1.4f067p-3F,   -0x1.4780ccp-4F};
  using Int = decltype(bit_pattern(x));
  const auto subnormal = less(x, constant<T>(0x1p-126F));
  const Int bits = bit_pattern(choose(subnormal, multiply(x, constant<T>(0x1p23F)), x));
  const Int e = shift_right(subtract(bits, integer<Int>(bit_pattern(0x1.6a09e6p-1F))), integer<Int>(23));
  const T t = subtract(of_pattern(subtract(bits, shift_left(e, integer<Int>(23)))), constant<T>(1.0F));
  const Int exponent = subtract(e, choose(subnormal, integer<Int>(23), integer<Int>(0)));
  const T sum = add(to_float(exponent), multiply(t, polynomial(t, kTerms)));
  const T positive = choose(equal(x, constant<T>(kInfinity)), x, sum);
  const T known = choose(equal(x, constant<T>(0.0F)), constant<T>(-kInfinity), positive);
  return choose(at_least(x, constant<T>(0.0F)), known, constant<T>(kNan));
}

/// r = x - n pi/2 with n whole, then the cosine or the sine of r. pi/2 is taken off in parts of eight bits (Cody and
/// Waite), whose products with n < 2^16 are exact. Beyond |x| = 100,000 the result is NaN, rather than digits that mean
/// nothing.
template <typename T>
CASYNC_INLINE T cosine_of(const T& x) {
  constexpr float kHalfPi[]{0x1.92p+0F, 0x1.fap-12F, 0x1.54p-20F, 0x1.10b462p-30F};
  constexpr float kCosine[]{0x1.55554ap-5F, -0x1.6c0c1ap-10F, 0x1.99e0ecp-16F};
  constexpr float kSine[]{-0x1.555546p-3F, 0x1.11077ap-7F, -0x1.9954a8p-13F};
  const auto inside = at_most(magnitude(x), constant<T>(100000.0F));
  const T held = choose(inside, x, constant<T>(0.0F));
  const T sum = add(multiply(held, constant<T>(0x1.45f306p-1F)), constant<T>(kWhole));
  const T n = subtract(sum, constant<T>(kWhole));
  T r = held;
  for (const float part : kHalfPi) r = subtract(r, multiply(n, constant<T>(part)));
  const T z = multiply(r, r);
  const T even = add(subtract(constant<T>(1.0F), multiply(z, constant<T>(0.5F))),
                     multiply(multiply(z, z), polynomial(z, kCosine)));
  const T odd = add(r, multiply(multiply(r, z), polynomial(z, kSine)));
  // cos(r + n pi/2): cos r, -sin r, -cos r, sin r for n mod 4 = 0, 1, 2, 3.
  using Int = decltype(bit_pattern(x));
  const Int quarter = bit_pattern(sum);
  const auto is_odd = equal(bit_and(quarter, integer<Int>(1)), integer<Int>(1));
  const Int sign = shift_left(bit_and(add(quarter, integer<Int>(1)), integer<Int>(2)), integer<Int>(30));
  const T result = of_pattern(bit_xor(bit_pattern(choose(is_odd, odd, even)), sign));
  return choose(inside, result, constant<T>(kNan));
}

CASYNC_INLINE float exp2(float x) { return exp2_of(x); }
CASYNC_INLINE float log2(float x) { return log2_of(x); }
CASYNC_INLINE float cosine(float x) { return cosine_of(x); }
CASYNC_INLINE F32x16 exp2(const F32x16& x) { return exp2_of(x); }
CASYNC_INLINE F32x16 log2(const F32x16& x) { return log2_of(x); }
CASYNC_INLINE F32x16 cosine(const F32x16& x) { return cosine_of(x); }

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
