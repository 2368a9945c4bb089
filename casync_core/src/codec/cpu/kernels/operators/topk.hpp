#pragma once

#include "codec/cpu/kernels/operators/select.hpp"

/// The k elements of the largest magnitudes, ties to the lower index, in order of index.
///
/// Of a long array a sample says which magnitude more than k elements are likely to reach. One pass over the array
/// keeps those that do, and the exact choice is made among them. Where the sample was wrong the choice is made among
/// all. Of a shorter array, of which few are wanted, the largest magnitudes of its parts say which one k elements reach
/// for certain.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// The chosen ones of n values, whose indices are `index`, or 0, 1, ... without one; `last` is what the last of the k
/// largest magnitudes has.
template <typename T>
void choose_largest(const T* values, const std::int32_t* index, std::int64_t n, std::int64_t k, Position last,
                    std::int32_t* index_out, T* value_out) {
  const I32x16 key = lanes(last.key);
  std::int64_t ties = k - last.before;
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < n && found < k; i += 16) {
    T padded[16];
    const T* from = values + i;
    Mask16 there = lanes(true);
    if (i + 16 > n) {
      __builtin_memset(padded, 0, sizeof padded);
      __builtin_memcpy(padded, from, static_cast<std::size_t>(n - i) * sizeof(T));
      from = padded;
      there = first_lanes(n - i);
    }
    const I32x16 keys = ByMagnitude::keys(from);
    const Mask16 reached = both(at_least(keys, key), there);
    if (!any(reached)) continue;
    unsigned tied = bits_of(both(equal(keys, key), there));
    unsigned chosen = bits_of(reached) & ~tied;
    if (__builtin_popcount(tied) <= ties) {
      chosen |= tied;
      ties -= __builtin_popcount(tied);
    } else
      for (; ties > 0; --ties, tied &= tied - 1) chosen |= tied & -tied;
    const Mask16 mask = mask_of(static_cast<std::uint16_t>(chosen));
    const I32x16 indices = index == nullptr ? add(lanes(static_cast<std::int32_t>(i)), lane_numbers())
                           : i + 16 <= n    ? load(index + i)
                                            : load_first(index + i, n - i);
    append(mask, indices, index_out + found);
    found += append(mask, load(from), value_out + found);
  }
}

/// A key that more than k of the n magnitudes are likely to reach; n is at least kSampleFrom. Sixteen neighbours are
/// looked at in each of 256 places, each at random within its part of the array, since rows of matrices differ.
constexpr std::int64_t kSampleFrom = 1 << 15;
template <typename T>
std::int32_t likely_key(const T* values, std::int64_t n, std::int64_t k) {
  T sample[4096];
  const std::int64_t part = n / 256;
  for (std::int64_t place = 0; place < 256; ++place) {
    const std::uint32_t random = static_cast<std::uint32_t>(place + 1) * 0x9E3779B9U >> 8;
    const std::int64_t from = place * part + random % (part - 15);
    __builtin_memcpy(sample + 16 * place, values + from, 16 * sizeof(T));
  }
  // Six deviations of a count above the expected one, as neighbours resemble each other.
  const auto expected = static_cast<float>(4096 * k / n);
  const auto rank = static_cast<std::int64_t>(expected + 6 * __builtin_sqrtf(expected)) + 8;
  return at_rank<ByMagnitude>(sample, 4096, rank < 4096 ? rank : 4095).key;
}

/// Appends the values whose magnitude reaches `key`, with their indices; returns how many there are.
template <typename T>
std::int64_t filter_magnitudes(const T* values, std::int64_t n, std::int32_t key, std::int32_t* index_out,
                               T* value_out) {
  const I32x16 least = lanes(key);
  std::int64_t found = 0;
  const auto keep = [&](std::int64_t i, const Mask16& mask) __attribute__((always_inline)) {
    append(mask, add(lanes(static_cast<std::int32_t>(i)), lane_numbers()), index_out + found);
    found += append(mask, load(values + i), value_out + found);
  };
  std::int64_t i = 0;
  for (; i + 1024 <= n; i += 1024) {
    Chosen chosen;
    for (std::int64_t j = 0; j < 1024; j += 16) chosen.see(j, at_least(ByMagnitude::keys(values + i + j), least));
    chosen.each([&](std::int64_t j, const Mask16& mask) { keep(i + j, mask); });
  }
  for (; i + 16 <= n; i += 16) keep(i, at_least(ByMagnitude::keys(values + i), least));
  for (; i < n; ++i) {
    T one[16]{};
    one[0] = values[i];
    index_out[found] = static_cast<std::int32_t>(i);
    value_out[found] = values[i];
    found += any(both(at_least(ByMagnitude::keys(one), least), first_lanes(1))) ? 1 : 0;
  }
  return found;
}

/// The parts of a shorter array, each of which has every 128th element, and the most elements that may be wanted: the
/// nearer that comes to the number of parts, the more elements reach the key of key_of_parts.
constexpr std::int64_t kParts = 128;
constexpr std::int64_t kMostOfParts = 112;
constexpr std::int64_t kPartsFrom = 1024;

/// A key that the k largest of n keys in whole vectors reach, 0 < k <= n, found bit by bit from the topmost one down to
/// `lowest`; `before`: how many are above it, k if it lies between the last of them and the next. With `lowest` above 0
/// more may reach it. What fills up the last vector is INT32_MIN, and comes last.
inline Position least_of_largest(const I32x16* keys, std::int64_t vectors, std::int64_t k, int lowest) {
  const auto reaching = [&](std::uint32_t key) __attribute__((always_inline)) {
    const I32x16 least = lanes(static_cast<std::int32_t>(key));
    std::int64_t count = 0;
    for (std::int64_t v = 0; v < vectors; ++v) count += __builtin_popcount(bits_of(at_least(keys[v], least)));
    return count;
  };
  std::uint32_t found = 0x80000000U;
  for (int bit = 31; bit >= lowest; --bit) {
    const std::uint32_t next = found + (1U << bit);
    const std::int64_t count = reaching(next);
    if (count == k) return {static_cast<std::int32_t>(next - 1), k};
    found += static_cast<std::uint32_t>(count > k) << bit;  // no branch, which would be guessed wrong
  }
  return {static_cast<std::int32_t>(found), found == 0x7fffffffU ? 0 : reaching(found + 1)};
}

/// The same of the magnitudes of a few values.
constexpr std::int64_t kFew = 256;
template <typename T>
Position least_of_largest(const T* values, std::int64_t n, std::int64_t k) {
  I32x16 keys[kFew / 16];
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) keys[i / 16] = ByMagnitude::keys(values + i);
  if (i < n) {
    T rest[16]{};
    __builtin_memcpy(rest, values + i, static_cast<std::size_t>(n - i) * sizeof(T));
    keys[i / 16] = choose(first_lanes(n - i), ByMagnitude::keys(rest), lanes(-0x7fffffff - 1));
  }
  return least_of_largest(keys, (n + 15) / 16, k, 0);
}

/// A key that at least k of the n magnitudes reach: about the k-th largest of the largest ones of all parts. n is at
/// least kPartsFrom, k at most kMostOfParts.
template <typename T>
std::int32_t key_of_parts(const T* values, std::int64_t n, std::int64_t k) {
  constexpr int kVectors = kParts / 16;
  I32x16 largest[kVectors];
  for (int v = 0; v < kVectors; ++v) largest[v] = ByMagnitude::keys(values + 16 * v);
  for (std::int64_t i = kParts; i + kParts <= n; i += kParts)
    for (int v = 0; v < kVectors; ++v) largest[v] = larger(ByMagnitude::keys(values + i + 16 * v), largest[v]);
  return least_of_largest(largest, kVectors, k, 16).key;
}

/// k is held between 0 and n, and returned. The outputs have room for k + kSlack elements, the scratch arrays for n +
/// kSlack; n < 2^31.
template <typename T>
std::int64_t topk(const T* values, std::int64_t n, std::int64_t k, std::int32_t* index_out, T* value_out,
                  std::int32_t* index_scratch, T* value_scratch) {
  k = k < 0 ? 0 : k < n ? k : n;
  if (k == 0) return 0;
  if (n >= kSampleFrom) {
    const std::int32_t key = likely_key(values, n, k);
    const std::int64_t count = filter_magnitudes(values, n, key, index_scratch, value_scratch);
    if (count >= k) {
      const Position last = at_rank<ByMagnitude>(value_scratch, count, k - 1);
      choose_largest(value_scratch, index_scratch, count, k, last, index_out, value_out);
      return k;
    }
  }
  if (n >= kPartsFrom && n < kSampleFrom && k <= kMostOfParts) {
    const std::int32_t key = key_of_parts(values, n, k);
    const std::int64_t count = filter_magnitudes(values, n, key, index_scratch, value_scratch);
    const Position last =
        count <= kFew ? least_of_largest(value_scratch, count, k) : at_rank<ByMagnitude>(value_scratch, count, k - 1);
    choose_largest(value_scratch, index_scratch, count, k, last, index_out, value_out);
    return k;
  }
  choose_largest(values, nullptr, n, k, at_rank<ByMagnitude>(values, n, k - 1), index_out, value_out);
  return k;
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
