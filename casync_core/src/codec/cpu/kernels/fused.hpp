#pragma once

#include "codec/cpu/kernels/ahead.hpp"
#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/kernels/simd.hpp"

/// The sum of raw and encoded contributions in one pass: sums stay in registers, where a pass per source would load and
/// store them each time. `Payload` knows one encoding: constructed for a source and a distance for fetch_ahead, `at(i)`
/// is its values i ... i + 15, `one(i)` the value i.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// A page of float32.
constexpr std::int64_t kPage = 1024;

/// Where the vectors that are summed together lie, `stride` elements apart, and how far ahead payloads and raw sources
/// are fetched. The order of additions to an element is always the same.
struct Steps {
  std::int64_t stride;
  std::int64_t payload_ahead;
  std::int64_t raw_ahead;
};

/// Sets (kFirst) or adds the values of one source at i, i + stride, ...
template <typename Payload, bool kFirst, int kVectors>
CASYNC_INLINE void contribute(const MergeSource& source, std::int64_t i, Steps steps, F32x16 (&sum)[kVectors]) {
  if (source.raw != nullptr) {
    const F32x16 factor = splat(source.factor);
    for (int v = 0; v < kVectors; ++v) {
      const float* const from = source.raw + i + steps.stride * v;
      fetch_ahead(from, steps.raw_ahead);
      const F32x16 value = load(from) * factor;
      sum[v] = kFirst ? value : sum[v] + value;
    }
    return;
  }
  const Payload payload(source, steps.payload_ahead);
  for (int v = 0; v < kVectors; ++v) {
    const F32x16 value = payload.at(i + steps.stride * v);
    sum[v] = kFirst ? value : sum[v] + value;
  }
}

template <typename Payload, bool kStream, int kVectors>
CASYNC_INLINE void merge_at(const MergeSource* sources, std::int64_t count, std::int64_t i, Steps steps, float* out,
                            FiniteCheck& check) {
  F32x16 sum[kVectors];
  contribute<Payload, true>(sources[0], i, steps, sum);
  for (std::int64_t s = 1; s < count; ++s) contribute<Payload, false>(sources[s], i, steps, sum);
  for (int v = 0; v < kVectors; ++v) {
    check.see(sum[v]);
    float* const to = out + i + steps.stride * v;
    if constexpr (kStream)
      stream(to, sum[v]);
    else
      store(to, sum[v]);
  }
}

template <typename Payload, bool kStream>
bool merge_as(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n) {
  FiniteCheck check;
  std::int64_t i = 0;
  const Steps straight{16, page_ahead(), page_ahead()};
  if (reading() == Reading::side_by_side) {
    for (; i + 4 * kPage <= n; i += 4 * kPage)
      for (std::int64_t j = i; j < i + kPage; j += 16)
        merge_at<Payload, kStream, 4>(sources, count, j, {kPage, kPageAhead, 4 * kPageAhead}, out, check);
  }
  for (; i + 64 <= n; i += 64) merge_at<Payload, kStream, 4>(sources, count, i, straight, out, check);
  for (; i + 16 <= n; i += 16) merge_at<Payload, kStream, 1>(sources, count, i, straight, out, check);
  for (; i < n; ++i) {
    float sum = 0;
    for (std::int64_t s = 0; s < count; ++s) {
      const float value =
          sources[s].raw != nullptr ? sources[s].raw[i] * sources[s].factor : Payload(sources[s], 0).one(i);
      sum = s == 0 ? value : sum + value;
    }
    check.see(splat(sum));
    out[i] = sum;
  }
  return check.failed();
}

template <typename Payload>
bool merge_fused(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool streaming) {
  return streaming ? merge_as<Payload, true>(sources, count, out, n) : merge_as<Payload, false>(sources, count, out, n);
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
