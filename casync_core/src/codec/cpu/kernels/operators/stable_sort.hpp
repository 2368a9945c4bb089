#pragma once

#include "codec/cpu/kernels/simd.hpp"

/// Merge sort: short runs by insertion, then merged from the array into the spare one and back.
///
/// `comes_first(a, b)` says whether a, which stands before b, may stay there; it is true for equals.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

template <typename T, typename ComesFirst>
void insertion_sort(T* data, std::int64_t n, const ComesFirst& comes_first) {
  for (std::int64_t i = 1; i < n; ++i) {
    const T moving = data[i];
    std::int64_t to = i;
    for (; to > 0 && !comes_first(data[to - 1], moving); --to) data[to] = data[to - 1];
    data[to] = moving;
  }
}

/// [0, middle) and [middle, n) of `from`, each sorted, into `to`.
template <typename T, typename ComesFirst>
void merge_runs(const T* from, std::int64_t middle, std::int64_t n, T* to, const ComesFirst& comes_first) {
  std::int64_t left = 0;
  std::int64_t right = middle;
  std::int64_t at = 0;
  while (left < middle && right < n) {
    // Without a branch: which side is next cannot be guessed.
    const bool stays = comes_first(from[left], from[right]);
    to[at++] = from[stays ? left : right];
    left += stays ? 1 : 0;
    right += stays ? 0 : 1;
  }
  __builtin_memcpy(to + at, from + left, static_cast<std::size_t>(middle - left) * sizeof(T));
  __builtin_memcpy(to + at + (middle - left), from + right, static_cast<std::size_t>(n - right) * sizeof(T));
}

/// `spare` has room for n elements.
template <typename T, typename ComesFirst>
void stable_sort(T* data, T* spare, std::int64_t n, const ComesFirst& comes_first) {
  constexpr std::int64_t kRunLength = 16;
  for (std::int64_t i = 0; i < n; i += kRunLength)
    insertion_sort(data + i, n - i < kRunLength ? n - i : kRunLength, comes_first);
  T* from = data;
  T* to = spare;
  for (std::int64_t run = kRunLength; run < n; run *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * run) {
      const std::int64_t count = n - i < 2 * run ? n - i : 2 * run;
      merge_runs(from + i, count < run ? count : run, count, to + i, comes_first);
    }
    T* const merged = to;
    to = from;
    from = merged;
  }
  if (from != data) __builtin_memcpy(data, from, static_cast<std::size_t>(n) * sizeof(T));
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
