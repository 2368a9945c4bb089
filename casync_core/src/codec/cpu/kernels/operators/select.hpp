#pragma once

#include "codec/cpu/kernels/integers.hpp"
#include "codec/cpu/kernels/operators/append.hpp"

/// The element that a sort would put at a position, without sorting: a histogram of the topmost eleven bits of all
/// elements says where the position lies, one of the next eleven bits of those elements goes on, then one of the last
/// ten. Elements are ordered by integer keys, so that the order is total: -0 comes before +0. NaN is not expected; it
/// would be ordered by its bits, beyond infinity.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Signed integers in the order of the elements.
struct InOrder {
  CASYNC_INLINE static I32x16 keys(const float* from) {
    I32x16 out;
    const U32x16 bits = as_bits(load(from));
    for (int k = 0; k < kRegisters; ++k) {
      const auto value = __builtin_bit_cast(IntRegister, bits.r[k]);
      out.r[k] = value ^ ((value >> 31) & 0x7fffffff);
    }
    return out;
  }
  CASYNC_INLINE static I32x16 keys(const std::int32_t* from) { return load(from); }

  static float element(std::int32_t key, const float* /*of*/) {
    return __builtin_bit_cast(float, key ^ ((key >> 31) & 0x7fffffff));
  }
  static std::int32_t element(std::int32_t key, const std::int32_t* /*of*/) { return key; }
};

/// Whether a may stand before b in an array that is sorted: -0 comes before +0 here too.
CASYNC_INLINE bool ascends(std::int32_t a, std::int32_t b) { return a <= b; }
CASYNC_INLINE bool ascends(float a, float b) {
  const auto key = [](float value) {
    const auto bits = __builtin_bit_cast(std::int32_t, value);
    return bits ^ ((bits >> 31) & 0x7fffffff);
  };
  return key(a) <= key(b);
}
template <typename T>
CASYNC_INLINE bool descends(T a, T b) {
  return ascends(b, a);
}

/// In the order of magnitudes, of which -2^31 has the largest.
struct ByMagnitude {
  CASYNC_INLINE static I32x16 keys(const float* from) {
    I32x16 out;
    const U32x16 bits = as_bits(load(from)) & 0x7fffffffU;
    for (int k = 0; k < kRegisters; ++k) out.r[k] = __builtin_bit_cast(IntRegister, bits.r[k]);
    return out;
  }
  CASYNC_INLINE static I32x16 keys(const std::int32_t* from) {
    I32x16 out = load(from);
    for (int k = 0; k < kRegisters; ++k) {
      const IntRegister sign = out.r[k] >> 31;
      const auto magnitude = __builtin_bit_cast(UintRegister, out.r[k] ^ sign) - __builtin_bit_cast(UintRegister, sign);
      out.r[k] = __builtin_bit_cast(IntRegister, magnitude ^ 0x80000000U);
    }
    return out;
  }
};

/// What is at a position: its key, and how many elements come before all of that key.
struct Position {
  std::int32_t key;
  std::int64_t before;
};

/// The position k, 0 <= k < n, from the largest element downwards.
template <typename Order, typename T>
Position at_rank(const T* values, std::int64_t n, std::int64_t k) {
  // Two tables, so that an element seldom waits for the count that its neighbour has just stored.
  std::int32_t counts[2][2048];
  std::int32_t digits[16];
  std::uint32_t known = 0;  // the topmost bits of the key, moved down; keys are compared as unsigned, with 2^31 added
  std::int64_t before = 0;
  int unknown = 32;
  constexpr int kWidths[]{11, 11, 10};
  for (const int width : kWidths) {
    __builtin_memset(counts, 0, sizeof counts);
    const int lowest = unknown - width;
    const auto count = [&](const T* from, std::int64_t lanes_there) __attribute__((always_inline)) {
      U32x16 key = unsigned_of(Order::keys(from));
      for (int r = 0; r < kRegisters; ++r) key.r[r] ^= 0x80000000U;
      I32x16 digit;
      const U32x16 masked = (key >> lowest) & ((1U << width) - 1U);
      for (int r = 0; r < kRegisters; ++r) digit.r[r] = __builtin_bit_cast(IntRegister, masked.r[r]);
      std::int64_t found = lanes_there;
      if (unknown == 32) {
        store(digits, digit);
      } else {
        I32x16 top;
        for (int r = 0; r < kRegisters; ++r) top.r[r] = __builtin_bit_cast(IntRegister, key.r[r] >> unknown);
        const Mask16 same = both(equal(top, lanes(static_cast<std::int32_t>(known))), first_lanes(lanes_there));
        found = append(same, digit, digits);
      }
      for (std::int64_t j = 0; j < found; ++j) ++counts[j % 2][digits[j]];
    };
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) count(values + i, 16);
    if (i < n) {
      T rest[16]{};
      __builtin_memcpy(rest, values + i, static_cast<std::size_t>(n - i) * sizeof(T));
      count(rest, n - i);
    }
    std::uint32_t digit = (1U << width) - 1U;
    for (; before + counts[0][digit] + counts[1][digit] <= k; --digit) before += counts[0][digit] + counts[1][digit];
    known = known << width | digit;
    unknown = lowest;
  }
  return {static_cast<std::int32_t>(known ^ 0x80000000U), before};
}

/// The element at position k, held between 0 and n - 1, of the values in descending order; 0 if there are none.
template <typename T>
T nth_largest(const T* values, std::int64_t n, std::int64_t k) {
  if (n == 0) return T{};
  return InOrder::element(at_rank<InOrder>(values, n, k < 0 ? 0 : k < n ? k : n - 1).key, values);
}
/// The same in ascending order.
template <typename T>
T nth_smallest(const T* values, std::int64_t n, std::int64_t k) {
  return nth_largest(values, n, n - 1 - (k < 0 ? 0 : k));
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
