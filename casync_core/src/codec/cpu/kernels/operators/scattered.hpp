#pragma once

#include "codec/cpu/kernels/integers.hpp"

/// Elements, or whole chunks, at places that an array of indices names. What reads by them holds them to the array, as
/// `a[i]` does. What stores by them gets them from a payload, where they may be anything, and says whether all were
/// inside; if not, it changes nothing. A NaN among what is stored goes to every place: the payload's sender lost a
/// unit.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Whether 0 <= index[i] < n for all of them.
inline bool all_inside(const std::int32_t* index, std::int64_t count, std::int64_t n) {
  if (n > 0x7fffffff) n = 0x7fffffff;
  const I32x16 end = lanes(static_cast<std::int32_t>(n));
  Mask16 outside = lanes(false);
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const I32x16 places = load(index + i);
    outside = either(outside, either(less(places, lanes(0)), at_least(places, end)));
  }
  bool inside = bits_of(outside) == 0;
  for (; i < count; ++i) inside &= (index[i] >= 0) & (index[i] < n);
  return inside;
}

/// out[i] = values[index[i]], with index[i] held between 0 and n - 1; zeros if there are no values.
template <typename T>
void gather(const T* values, std::int64_t n, const std::int32_t* index, std::int64_t count, T* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = index[i] < 0 ? 0 : index[i] < n ? index[i] : n - 1;
    out[i] = n == 0 ? T{} : values[place];
  }
}

/// The chunks index[0], index[1], ... of `chunk` elements each; zeros follow a chunk that ends with the array.
template <typename T>
void gather_chunks(const T* values, std::int64_t n, std::int64_t chunk, const std::int32_t* index, std::int64_t count,
                   T* out) {
  const std::int64_t last = n == 0 ? 0 : (n - 1) / chunk;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t from = (index[i] < 0 ? 0 : index[i] < last ? index[i] : last) * chunk;
    const std::int64_t there = n - from < chunk ? n - from : chunk;
    if (there > 0) __builtin_memcpy(out + i * chunk, values + from, static_cast<std::size_t>(there) * sizeof(T));
    __builtin_memset(out + i * chunk + there, 0, static_cast<std::size_t>(chunk - there) * sizeof(T));
  }
}

CASYNC_INLINE bool any_nan(const std::int32_t* /*values*/, std::int64_t /*n*/) { return false; }
CASYNC_INLINE bool any_nan(const float* values, std::int64_t n) {
  bool found = false;
  for (std::int64_t i = 0; i < n; ++i) found |= values[i] != values[i];
  return found;
}
CASYNC_INLINE void fill_with_nan(std::int32_t* /*out*/, std::int64_t /*n*/) {}
CASYNC_INLINE void fill_with_nan(float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = __builtin_nanf("");
}

/// n zeros, then value[i] at index[i].
template <typename T>
bool scatter(const std::int32_t* index, const T* value, std::int64_t count, T* out, std::int64_t n) {
  if (!all_inside(index, count, n)) return false;
  __builtin_memset(out, 0, static_cast<std::size_t>(n) * sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) out[index[i]] = value[i];
  if (any_nan(value, count)) fill_with_nan(out, n);
  return true;
}

/// The same for chunks of `chunk` elements; of the last one of `out` what fits.
template <typename T>
bool scatter_chunks(const std::int32_t* index, const T* value, std::int64_t chunk, std::int64_t count, T* out,
                    std::int64_t n) {
  if (!all_inside(index, count, (n + chunk - 1) / chunk)) return false;
  __builtin_memset(out, 0, static_cast<std::size_t>(n) * sizeof(T));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t to = static_cast<std::int64_t>(index[i]) * chunk;
    const std::int64_t there = n - to < chunk ? n - to : chunk;
    __builtin_memcpy(out + to, value + i * chunk, static_cast<std::size_t>(there) * sizeof(T));
  }
  if (any_nan(value, count * chunk)) fill_with_nan(out, n);
  return true;
}

/// out[index[i]] += value[i], in order.
inline bool add_scattered(const std::int32_t* index, const float* value, std::int64_t count, float* out,
                          std::int64_t n) {
  if (!all_inside(index, count, n)) return false;
  for (std::int64_t i = 0; i < count; ++i) out[index[i]] += value[i];
  if (any_nan(value, count)) fill_with_nan(out, n);
  return true;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
