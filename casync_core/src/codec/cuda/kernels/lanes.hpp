#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codec/cuda/kernels/device.hpp"

/// What code generated from CompLL is made of (docs/compll.md): each operation of the language under the name that it
/// has in codec/cpu/kernels/lanes.hpp and integers.hpp, over single values, since a thread is a lane. Integers wrap
/// around and conversions saturate. Nothing is contracted: compilers for CUDA are told --fmad=false, and keep IEEE
/// division and square roots and subnormal numbers by themselves.
namespace casync::codec::cuda {

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float kNan = __builtin_bit_cast(float, 0x7fc00000);

// --- comparison, logic, choice

#define CASYNC_COMPARE(name, sign)                               \
  CASYNC_DEVICE bool name(float a, float b) { return a sign b; } \
  CASYNC_DEVICE bool name(std::int32_t a, std::int32_t b) { return a sign b; }
CASYNC_COMPARE(less, <)
CASYNC_COMPARE(greater, >)
CASYNC_COMPARE(at_most, <=)
CASYNC_COMPARE(at_least, >=)
CASYNC_COMPARE(equal, ==)
CASYNC_COMPARE(not_equal, !=)
#undef CASYNC_COMPARE

CASYNC_DEVICE bool both(bool a, bool b) { return a && b; }
CASYNC_DEVICE bool either(bool a, bool b) { return a || b; }
CASYNC_DEVICE bool negate(bool a) { return !a; }

template <typename T>
CASYNC_DEVICE T choose(bool condition, T yes, T no) {
  return condition ? yes : no;
}
CASYNC_DEVICE float keep(bool condition, float value) { return condition ? value : 0.0F; }
CASYNC_DEVICE float drop(bool condition, float value) { return condition ? 0.0F : value; }

// --- arithmetic

CASYNC_DEVICE float add(float a, float b) { return a + b; }
CASYNC_DEVICE float subtract(float a, float b) { return a - b; }
CASYNC_DEVICE float multiply(float a, float b) { return a * b; }
CASYNC_DEVICE float divide(float a, float b) { return a / b; }
CASYNC_DEVICE float minus(float a) { return -a; }
CASYNC_DEVICE float magnitude(float a) { return fabsf(a); }
CASYNC_DEVICE bool finite(float value) { return value - value == 0.0F; }

CASYNC_DEVICE std::uint32_t bits(std::int32_t a) { return static_cast<std::uint32_t>(a); }
CASYNC_DEVICE std::int32_t add(std::int32_t a, std::int32_t b) { return static_cast<std::int32_t>(bits(a) + bits(b)); }
CASYNC_DEVICE std::int32_t subtract(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) - bits(b));
}
CASYNC_DEVICE std::int32_t multiply(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) * bits(b));
}
CASYNC_DEVICE std::int32_t minus(std::int32_t a) { return subtract(0, a); }
CASYNC_DEVICE std::int32_t magnitude(std::int32_t a) { return a < 0 ? minus(a) : a; }
CASYNC_DEVICE std::int32_t divide(std::int32_t a, std::int32_t b) {
  if (b == 0) return 0;
  return b == -1 ? minus(a) : a / b;
}
CASYNC_DEVICE std::int32_t remainder(std::int32_t a, std::int32_t b) { return b == 0 || b == -1 ? 0 : a % b; }
template <std::int32_t kBy>
CASYNC_DEVICE std::int32_t divide_by(std::int32_t a) {
  return divide(a, kBy);
}
template <std::int32_t kBy>
CASYNC_DEVICE std::int32_t remainder_by(std::int32_t a) {
  return remainder(a, kBy);
}
CASYNC_DEVICE std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return b > 0 ? (a + b - 1) / b : 0; }
CASYNC_DEVICE std::int32_t shift_left(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(bits(a) << (bits(b) & 31U));
}
CASYNC_DEVICE std::int32_t shift_right(std::int32_t a, std::int32_t b) { return a >> (bits(b) & 31U); }
CASYNC_DEVICE std::int32_t bit_and(std::int32_t a, std::int32_t b) { return a & b; }
CASYNC_DEVICE std::int32_t bit_or(std::int32_t a, std::int32_t b) { return a | b; }
CASYNC_DEVICE std::int32_t bit_xor(std::int32_t a, std::int32_t b) { return a ^ b; }
CASYNC_DEVICE std::int32_t bit_not(std::int32_t a) { return ~a; }

/// a < b ? a : b and a > b ? a : b.
template <typename T>
CASYNC_DEVICE T smaller(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
CASYNC_DEVICE T larger(T a, T b) {
  return a > b ? a : b;
}
CASYNC_DEVICE std::int32_t larger_magnitude(std::int32_t a, std::int32_t b) {
  return larger(magnitude(a), magnitude(b));
}
CASYNC_DEVICE float larger_magnitude(float a, float b) { return larger(magnitude(a), magnitude(b)); }

// --- conversion

CASYNC_DEVICE float to_float(std::int32_t a) { return static_cast<float>(a); }
CASYNC_DEVICE float to_float(bool a) { return a ? 1.0F : 0.0F; }
CASYNC_DEVICE std::int32_t to_int(bool a) { return a ? 1 : 0; }
/// Towards zero, saturating, NaN to 0.
CASYNC_DEVICE std::int32_t to_int(float a) {
  if (!(a == a)) return 0;
  if (a >= 0x1p31F) return 0x7fffffff;
  return a < -0x1p31F ? -0x7fffffff - 1 : static_cast<std::int32_t>(a);
}
CASYNC_DEVICE bool to_bit(std::int32_t a) { return a > 0; }
CASYNC_DEVICE bool to_bit(float a) { return a >= 1.0F; }
CASYNC_DEVICE std::int32_t saturate(std::int32_t a, std::int32_t least, std::int32_t most) {
  return smaller(larger(a, least), most);
}

CASYNC_DEVICE std::int32_t bit_pattern(float a) { return __builtin_bit_cast(std::int32_t, a); }
CASYNC_DEVICE float of_pattern(std::int32_t a) { return __builtin_bit_cast(float, a); }

}  // namespace casync::codec::cuda
