#pragma once

#include <cstddef>

#include "codec/cpu/kernels/coded.hpp"
#include "codec/cpu/kernels/half.hpp"
#include "codec/cpu/kernels/lanes.hpp"

/// Arrays as generated code reads and writes them: sixteen elements from `i` on, of which the first `count` are there.
/// A `whole` sixteen is one load or store; otherwise nothing past `count` is touched, and lanes past it read as zero.
/// Arrays of 1, 2 or 4 bits are packed from the lowest bit of each byte upwards, and begin on a byte.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// A packed array of kBits-bit elements.
template <int kBits>
struct Packed {
  std::byte* bytes = nullptr;
};
template <int kBits>
struct PackedSource {
  const std::byte* bytes = nullptr;
};

/// A 16-bit float in memory. In lanes it is a float32.
template <typename Format>
struct Narrow {
  std::uint16_t bits;
};

CASYNC_INLINE bool is_whole(std::int64_t count) { return count == 16; }

CASYNC_INLINE F32x16 elements(const float* from, std::int64_t i, std::int64_t count) {
  return is_whole(count) ? load(from + i) : load_first(from + i, count);
}
CASYNC_INLINE I32x16 elements(const std::int32_t* from, std::int64_t i, std::int64_t count) {
  I32x16 out{};
  __builtin_memcpy(&out, from + i, is_whole(count) ? 64 : static_cast<std::size_t>(count) * 4);
  return out;
}
CASYNC_INLINE I32x16 elements(const std::uint16_t* from, std::int64_t i, std::int64_t count) {
  std::uint16_t sixteen[16]{};
  __builtin_memcpy(sixteen, from + i, is_whole(count) ? 32 : static_cast<std::size_t>(count) * 2);
  I32x16 out;
  for (int k = 0; k < kRegisters; ++k) {
    ShortRegister part;
    __builtin_memcpy(&part, sixteen + k * kLanes, sizeof part);
    out.r[k] = __builtin_convertvector(part, IntRegister);
  }
  return out;
}
CASYNC_INLINE I32x16 elements(const std::uint8_t* from, std::int64_t i, std::int64_t count) {
  if (is_whole(count)) return ints_of(from + i);
  std::uint8_t sixteen[16]{};
  __builtin_memcpy(sixteen, from + i, static_cast<std::size_t>(count));
  return ints_of(sixteen);
}
CASYNC_INLINE I32x16 elements(const std::int8_t* from, std::int64_t i, std::int64_t count) {
  const I32x16 sign = lanes(0x80);
  return subtract(bit_xor(elements(reinterpret_cast<const std::uint8_t*>(from), i, count), sign), sign);
}
template <typename Format>
CASYNC_INLINE F32x16 elements(const Narrow<Format>* from, std::int64_t i, std::int64_t count) {
  std::uint16_t sixteen[16]{};
  __builtin_memcpy(sixteen, from + i, is_whole(count) ? 32 : static_cast<std::size_t>(count) * 2);
  return Format::read(sixteen);
}
/// Of chunks whose length is no multiple of eight, sixteen elements may begin inside of a byte, `shift` bits behind its
/// lowest: `bits` of them there. What precedes them in the byte stays, what follows becomes zero.
[[gnu::noinline]] inline void put_inside(std::byte* to, int shift, std::int64_t bits, std::uint64_t packed) {
  const auto before = std::to_integer<std::uint64_t>(*to) & ((1U << shift) - 1U);
  *to = static_cast<std::byte>(before | packed << shift);
  packed >>= 8 - shift;
  __builtin_memcpy(to + 1, &packed, static_cast<std::size_t>((bits + shift - 1) / 8));
}
[[gnu::noinline]] inline std::uint64_t elements_inside(const std::byte* from, int shift, std::int64_t bits) {
  std::byte nine[9]{};
  __builtin_memcpy(nine, from, static_cast<std::size_t>((bits + shift + 7) / 8));
  std::uint64_t packed = 0;
  __builtin_memcpy(&packed, nine, sizeof packed);
  return packed >> shift | std::to_integer<std::uint64_t>(nine[8]) << (64 - shift);
}

template <int kBits>
CASYNC_INLINE auto elements(PackedSource<kBits> from, std::int64_t i, std::int64_t count) {
  std::byte sixteen[2 * kBits]{};
  if (const auto shift = static_cast<int>(i * kBits % 8); __builtin_expect(shift != 0, 0)) {
    const std::uint64_t packed = elements_inside(from.bytes + i * kBits / 8, shift, count * kBits);
    __builtin_memcpy(sixteen, &packed, sizeof sixteen);
  } else {
    __builtin_memcpy(sixteen, from.bytes + i * kBits / 8, static_cast<std::size_t>((count * kBits + 7) / 8));
  }
  if constexpr (kBits == 1) {
    std::uint16_t bits = 0;
    __builtin_memcpy(&bits, sixteen, sizeof bits);
    return mask_of(bits);
  } else {
    return codes_at<kBits>(sixteen, 0);
  }
}

CASYNC_INLINE void put(float* to, std::int64_t i, std::int64_t count, const F32x16& a) {
  if (is_whole(count))
    store(to + i, a);
  else
    store_first(to + i, a, count);
}
CASYNC_INLINE void put(std::int32_t* to, std::int64_t i, std::int64_t count, const I32x16& a) {
  __builtin_memcpy(to + i, &a, is_whole(count) ? 64 : static_cast<std::size_t>(count) * 4);
}
CASYNC_INLINE void put(std::uint16_t* to, std::int64_t i, std::int64_t count, const I32x16& a) {
  std::uint16_t sixteen[16];
  for (int k = 0; k < kRegisters; ++k) {
    const ShortRegister part = __builtin_convertvector(a.r[k], ShortRegister);
    __builtin_memcpy(sixteen + k * kLanes, &part, sizeof part);
  }
  __builtin_memcpy(to + i, sixteen, is_whole(count) ? 32 : static_cast<std::size_t>(count) * 2);
}
CASYNC_INLINE void put(std::uint8_t* to, std::int64_t i, std::int64_t count, const I32x16& a) {
  std::uint8_t sixteen[16];
  store_bytes(sixteen, unsigned_of(a));
  __builtin_memcpy(to + i, sixteen, is_whole(count) ? 16 : static_cast<std::size_t>(count));
}
CASYNC_INLINE void put(std::int8_t* to, std::int64_t i, std::int64_t count, const I32x16& a) {
  put(reinterpret_cast<std::uint8_t*>(to), i, count, a);
}
template <typename Format>
CASYNC_INLINE void put(Narrow<Format>* to, std::int64_t i, std::int64_t count, const F32x16& a) {
  std::uint16_t sixteen[16];
  Format::write(sixteen, a);
  __builtin_memcpy(to + i, sixteen, is_whole(count) ? 32 : static_cast<std::size_t>(count) * 2);
}
template <int kBits>
CASYNC_INLINE void put(Packed<kBits> to, std::int64_t i, std::int64_t count, const I32x16& a) {
  static_assert(kBits > 1);  // of a bit, a mask
  std::uint8_t sixteen[16];
  store_bytes(sixteen, unsigned_of(choose(first_lanes(count), a, lanes(0))));
  std::byte packed[2 * kBits];
  pack<kBits>(sixteen, 2 * kBits, packed);
  if (const auto shift = static_cast<int>(i * kBits % 8); __builtin_expect(shift != 0, 0)) {
    std::uint64_t all = 0;
    __builtin_memcpy(&all, packed, sizeof packed);
    return put_inside(to.bytes + i * kBits / 8, shift, count * kBits, all);
  }
  __builtin_memcpy(to.bytes + i * kBits / 8, packed, static_cast<std::size_t>((count * kBits + 7) / 8));
}
CASYNC_INLINE void put(Packed<1> to, std::int64_t i, std::int64_t count, const Mask16& a) {
  const auto bits = static_cast<std::uint16_t>(bits_of(a) & ((1U << count) - 1U));
  if (const auto shift = static_cast<int>(i % 8); __builtin_expect(shift != 0, 0))
    return put_inside(to.bytes + i / 8, shift, count, bits);
  __builtin_memcpy(to.bytes + i / 8, &bits, static_cast<std::size_t>((count + 7) / 8));
}

/// One element.
CASYNC_INLINE float pick(const float* from, std::int32_t at) {
  float value = 0;
  __builtin_memcpy(&value, from + at, sizeof value);
  return value;
}
CASYNC_INLINE std::int32_t pick(const std::int32_t* from, std::int32_t at) {
  std::int32_t value = 0;
  __builtin_memcpy(&value, from + at, sizeof value);
  return value;
}
CASYNC_INLINE std::int32_t pick(const std::uint16_t* from, std::int32_t at) {
  std::uint16_t value = 0;
  __builtin_memcpy(&value, from + at, sizeof value);
  return value;
}
CASYNC_INLINE std::int32_t pick(const std::uint8_t* from, std::int32_t at) { return from[at]; }
CASYNC_INLINE std::int32_t pick(const std::int8_t* from, std::int32_t at) { return from[at]; }
template <typename Format>
CASYNC_INLINE float pick(const Narrow<Format>* from, std::int32_t at) {
  float value[16];
  store(value, elements(from, at, 1));
  return value[0];
}
template <int kBits>
CASYNC_INLINE auto pick(PackedSource<kBits> from, std::int32_t at) {
  const std::int32_t code = code_at<kBits>(from.bytes, at);
  if constexpr (kBits == 1)
    return code != 0;
  else
    return code;
}

/// The same, 0 outside of [0, size).
template <typename Source>
CASYNC_INLINE auto pick(Source from, std::int32_t at, std::int64_t size) {
  return at >= 0 && at < size ? pick(from, at) : decltype(pick(from, at)){};
}

/// Sixteen elements, each where its index says; an index outside of [0, size) is held inside.
template <typename Source>
CASYNC_INLINE auto pick(Source from, const I32x16& at, std::int64_t size) {
  std::int32_t index[16];
  const I32x16 held = smaller(larger(at, lanes(0)), lanes(static_cast<std::int32_t>(size - 1)));
  __builtin_memcpy(index, &held, sizeof index);
  using Element = decltype(pick(from, std::int32_t{0}));
  Element values[16]{};
  if (size > 0)
    for (int lane = 0; lane < 16; ++lane) values[lane] = pick(from, index[lane]);
  if constexpr (sizeof(Element) == 1) {
    std::uint16_t bits = 0;
    for (int lane = 0; lane < 16; ++lane) bits = static_cast<std::uint16_t>(bits | (values[lane] ? 1U : 0U) << lane);
    return mask_of(bits);
  } else if constexpr (__is_same(Element, float)) {
    return load(values);
  } else {
    return elements(values, 0, 16);
  }
}

/// The elements from `at` on, of which there are `size`; those outside are zero.
template <typename Source>
CASYNC_INLINE auto neighbours(Source from, std::int64_t at, std::int64_t count, std::int64_t size) {
  if (count > size - at) count = size - at;
  return at < 0 || count <= 0 ? decltype(elements(from, at, count)){} : elements(from, at, count);
}

/// Into the second-level cache, what lies at sixteen places that are far apart, for a block of them at once: where each
/// place is waited for when it is read, a processor has too few on their way.
template <typename T>
CASYNC_INLINE void fetch(const T* from, const I32x16& at) {
  std::int32_t index[16];
  __builtin_memcpy(index, &at, sizeof index);
  for (const std::int32_t place : index) __builtin_prefetch(from + place, 0, 2);
}

/// Each of the first `count` values to its place; false, and nothing more is done, if one is outside of [0, size).
template <typename Into>
CASYNC_INLINE bool scatter(const I32x16& at, const F32x16& a, std::int64_t count, std::int64_t size, const Into& into) {
  std::int32_t index[16];
  float values[16];
  __builtin_memcpy(index, &at, sizeof index);
  __builtin_memcpy(values, &a, sizeof values);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    if (index[lane] < 0 || index[lane] >= size) return false;
    into(index[lane], values[lane]);
  }
  return true;
}
/// The same, but what belongs behind the end goes nowhere.
template <typename Into>
CASYNC_INLINE bool scatter_inside(const I32x16& at, const F32x16& a, std::int64_t count, std::int64_t size,
                                  const Into& into) {
  std::int32_t index[16];
  float values[16];
  __builtin_memcpy(index, &at, sizeof index);
  __builtin_memcpy(values, &a, sizeof values);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    if (index[lane] < 0) return false;
    if (index[lane] < size) into(index[lane], values[lane]);
  }
  return true;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
