#pragma once

#include "codec/cpu/kernels/lanes.hpp"

/// What lanes.hpp leaves out of sixteen integers, with the results of its scalar operations.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

// --- loading, storing

CASYNC_INLINE I32x16 load(const std::int32_t* from) {
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) __builtin_memcpy(&out.r[k], from + k * kLanes, kRegisterBytes);
  return out;
}
CASYNC_INLINE void store(std::int32_t* to, const I32x16& a) {
  typedef std::int32_t Unaligned __attribute__((vector_size(kRegisterBytes), aligned(1), may_alias));
  for (int k = 0; k < kRegisters; ++k) *reinterpret_cast<Unaligned*>(to + k * kLanes) = a.r[k];
}
/// The first `count` lanes; the others are zero.
CASYNC_INLINE I32x16 load_first(const std::int32_t* from, std::int64_t count) {
  I32x16 out{};
  __builtin_memcpy(&out, from, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  return out;
}
CASYNC_INLINE void store_first(std::int32_t* to, const I32x16& a, std::int64_t count) {
  __builtin_memcpy(to, &a, static_cast<std::size_t>(count) * sizeof(std::int32_t));
}

// --- arithmetic

CASYNC_INLINE I32x16 minus(const I32x16& a) { return subtract(I32x16{}, a); }
CASYNC_INLINE std::int32_t magnitude(std::int32_t a) { return a < 0 ? minus(a) : a; }
CASYNC_INLINE I32x16 magnitude(const I32x16& a) { return larger(a, minus(a)); }

CASYNC_INLINE std::int32_t bit_not(std::int32_t a) { return ~a; }
CASYNC_INLINE I32x16 bit_not(I32x16 a) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] = ~a.r[k];
  return a;
}

CASYNC_INLINE I32x16 shift_left(I32x16 a, const I32x16& b) {
  for (int k = 0; k < kRegisters; ++k) {
    const UintRegister shifted = __builtin_bit_cast(UintRegister, a.r[k])
                                 << (__builtin_bit_cast(UintRegister, b.r[k]) & 31U);
    a.r[k] = __builtin_bit_cast(IntRegister, shifted);
  }
  return a;
}
CASYNC_INLINE I32x16 shift_right(I32x16 a, const I32x16& b) {
  for (int k = 0; k < kRegisters; ++k) a.r[k] >>= b.r[k] & 31;
  return a;
}

/// By way of double, whose quotient, cut off, is exact for all integers of 32 bits.
CASYNC_INLINE I32x16 divide(const I32x16& a, const I32x16& b) {
  using Half = std::int32_t __attribute__((vector_size(kRegisterBytes / 2)));
  using Double = double __attribute__((vector_size(kRegisterBytes)));
  constexpr int kHalf = kRegisterBytes / 2;
  const I32x16 one = lanes(1);
  const Mask16 nothing = equal(b, lanes(0));
  const Mask16 opposite = equal(b, lanes(-1));  // alone can leave the range
  const I32x16 divisor = choose(either(nothing, opposite), one, b);
  I32x16 out;
  for (int half = 0; half < 2 * kRegisters; ++half) {
    Half dividends;
    Half divisors;
    __builtin_memcpy(&dividends, reinterpret_cast<const char*>(&a) + half * kHalf, kHalf);
    __builtin_memcpy(&divisors, reinterpret_cast<const char*>(&divisor) + half * kHalf, kHalf);
    const Double quotients = __builtin_convertvector(dividends, Double) / __builtin_convertvector(divisors, Double);
    const Half quotient = __builtin_convertvector(quotients, Half);
    __builtin_memcpy(reinterpret_cast<char*>(&out) + half * kHalf, &quotient, kHalf);
  }
  return choose(nothing, lanes(0), choose(opposite, minus(a), out));
}
CASYNC_INLINE I32x16 remainder(const I32x16& a, const I32x16& b) {
  return choose(equal(b, lanes(0)), lanes(0), subtract(a, multiply(divide(a, b), b)));
}

/// By a constant, which compilers turn into a multiplication.
template <std::int32_t kBy>
CASYNC_INLINE std::int32_t divide_by(std::int32_t a) {
  return divide(a, kBy);
}
template <std::int32_t kBy>
CASYNC_INLINE I32x16 divide_by(I32x16 a) {
  if constexpr (kBy == 0) return lanes(0);
  if constexpr (kBy == -1) return minus(a);
  if constexpr (kBy != 0 && kBy != -1)
    for (int k = 0; k < kRegisters; ++k) a.r[k] /= kBy;
  return a;
}
template <std::int32_t kBy>
CASYNC_INLINE std::int32_t remainder_by(std::int32_t a) {
  return remainder(a, kBy);
}
template <std::int32_t kBy>
CASYNC_INLINE I32x16 remainder_by(const I32x16& a) {
  if constexpr (kBy == 0 || kBy == -1) return lanes(0);
  return subtract(a, multiply(divide_by<kBy>(a), lanes(kBy)));
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
