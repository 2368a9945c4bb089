#pragma once

#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// The sum of raw and encoded contributions in one pass: sums stay in registers, where a pass per source would load and
/// store them each time. `Payload` knows one encoding: constructed for a source, `at(i)` is its values i ... i + 15,
/// `one(i)` the value i.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// A page of float32. Ranges of four pages are summed side by side, which gets more of them from memory per second than
/// one after the other; the order of additions to an element is the same.
constexpr std::int64_t kPage = 1024;

/// Sets (kFirst) or adds the values of one source at i, i + kStride, ...
template <typename Payload, bool kFirst, int kVectors, std::int64_t kStride>
CASYNC_INLINE void contribute(const MergeSource& source, std::int64_t i, F32x16 (&sum)[kVectors]) {
  if (source.raw != nullptr) {
    const F32x16 factor = splat(source.factor);
    for (int v = 0; v < kVectors; ++v) {
      const float* const from = source.raw + i + kStride * v;
      fetch_ahead(from, kStride == kPage ? kVectors * kOneStream : kOneStream);
      const F32x16 value = load(from) * factor;
      sum[v] = kFirst ? value : sum[v] + value;
    }
    return;
  }
  const Payload payload(source.payload);
  for (int v = 0; v < kVectors; ++v) {
    const F32x16 value = payload.at(i + kStride * v);
    sum[v] = kFirst ? value : sum[v] + value;
  }
}

template <typename Payload, int kVectors, std::int64_t kStride>
CASYNC_INLINE void merge_at(const MergeSource* sources, std::int64_t count, std::int64_t i, float* out,
                            FiniteCheck& check) {
  F32x16 sum[kVectors];
  contribute<Payload, true, kVectors, kStride>(sources[0], i, sum);
  for (std::int64_t s = 1; s < count; ++s) contribute<Payload, false, kVectors, kStride>(sources[s], i, sum);
  for (int v = 0; v < kVectors; ++v) {
    check.see(sum[v]);
    store(out + i + kStride * v, sum[v]);
  }
}

template <typename Payload>
bool merge_fused(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n) {
  FiniteCheck check;
  std::int64_t i = 0;
  for (; i + 4 * kPage <= n; i += 4 * kPage)
    for (std::int64_t j = i; j < i + kPage; j += 16) merge_at<Payload, 4, kPage>(sources, count, j, out, check);
  for (; i + 64 <= n; i += 64) merge_at<Payload, 4, 16>(sources, count, i, out, check);
  for (; i + 16 <= n; i += 16) merge_at<Payload, 1, 16>(sources, count, i, out, check);
  for (; i < n; ++i) {
    float sum = 0;
    for (std::int64_t s = 0; s < count; ++s) {
      const float value =
          sources[s].raw != nullptr ? sources[s].raw[i] * sources[s].factor : Payload(sources[s].payload).one(i);
      sum = s == 0 ? value : sum + value;
    }
    check.see(splat(sum));
    out[i] = sum;
  }
  return check.failed();
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
