#pragma once

#include "codec/cpu/kernels/ahead.hpp"
#include "codec/cpu/kernels/arrays.hpp"
#include "codec/cpu/kernels/integers.hpp"
#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cpu/kernels/operators/append.hpp"
#include "codec/cpu/kernels/operators/draws.hpp"
#include "codec/cpu/kernels/operators/elementary.hpp"
#include "codec/cpu/kernels/operators/rounding.hpp"

/// What code generated for a unit needs beside operations on lanes: the gradient, scratch memory, payloads, results.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

// --- the gradient

/// The unit's element `at`, 0 outside of it.
template <bool kFeedback>
CASYNC_INLINE float gradient_at(const UnitJob& job, std::int32_t at) {
  if (at < 0 || at >= job.facts.n) return 0.0F;
  const float value = pick(job.accumulated, at);
  return (kFeedback ? value + pick(job.residual, at) : value) * job.mid;
}
template <bool kFeedback>
CASYNC_INLINE F32x16 gradient_at(const UnitJob& job, const I32x16& at) {
  F32x16 value = pick(job.accumulated, at, job.facts.n);
  if constexpr (kFeedback) value = value + pick(static_cast<const float*>(job.residual), at, job.facts.n);
  return value * splat(job.mid);
}

/// The unit's elements from `at` on; those outside are zero.
template <bool kFeedback>
CASYNC_INLINE F32x16 gradient_neighbours(const UnitJob& job, std::int64_t at, std::int64_t count) {
  F32x16 value = neighbours(job.accumulated, at, count, job.facts.n);
  if constexpr (kFeedback) value = value + neighbours(static_cast<const float*>(job.residual), at, count, job.facts.n);
  return value * splat(job.mid);
}

template <bool kFeedback>
CASYNC_INLINE void fetch_gradient(const UnitJob& job, const I32x16& at) {
  fetch(job.accumulated, at);
  if constexpr (kFeedback) fetch(job.residual, at);
}

template <bool kFeedback>
bool all_finite(const UnitJob& job) {
  Finiteness check;
  const F32x16 factor = splat(job.mid);
  for (std::int64_t i = 0; i < job.facts.n; i += 16) {
    const std::int64_t count = job.facts.n - i < 16 ? job.facts.n - i : 16;
    F32x16 x = elements(job.accumulated, i, count);
    if constexpr (kFeedback) x = x + elements(static_cast<const float*>(job.residual), i, count);
    check.see(x * factor);
  }
  return !check.lost();
}

/// Asks for half of the next unit while an operator goes through `values` that are in the caches: memory would rest.
template <bool kFeedback>
class NextUnit {
 public:
  CASYNC_INLINE NextUnit(const UnitJob& job, std::int64_t values)
      : accumulated_(job.accumulated + job.facts.n),
        residual_(kFeedback ? job.residual + job.facts.n : nullptr),
        sixteenths_(values > 0 ? 2 * next_unit_ahead(job.facts.n) / values : 0) {}

  /// As much of it as belongs to `count` of the values from i on.
  CASYNC_INLINE void operator()(std::int64_t i, std::int64_t count) const {
    const std::int64_t last = (i + count) * sixteenths_ / 16;
    for (std::int64_t at = i * sixteenths_ / 16; at < last; at += 16) {
      fetch_to_second_level(accumulated_ + at);
      if constexpr (kFeedback) fetch_to_second_level(residual_ + at);
    }
  }

 private:
  const float* accumulated_;
  const float* residual_;
  std::int64_t sixteenths_;  // of an element, for each of the values
};

// --- scratch memory

/// Arrays have room for sixteen times four elements more than a unit, so that whole lanes may be stored at their end.
constexpr std::int64_t kRoom = 64;
CASYNC_INLINE std::int64_t scratch_of(std::int64_t n) { return (n + kRoom + 15) / 16 * 64; }
template <typename T>
CASYNC_INLINE T* take(std::byte*& scratch, std::int64_t n) {
  std::byte* const here = scratch;
  scratch += scratch_of(n);
  return reinterpret_cast<T*>(here);
}

// --- payloads

/// The count of a unit that was not finite.
constexpr std::int32_t kPoisonedCount = -1;

CASYNC_INLINE void write_count(std::byte* to, std::int32_t count) { __builtin_memcpy(to, &count, sizeof count); }
CASYNC_INLINE std::int32_t read_count(const std::byte* from) {
  std::int32_t count = 0;
  __builtin_memcpy(&count, from, sizeof count);
  return count;
}
template <typename T, typename Value>
CASYNC_INLINE void write_one(T* to, Value value) {
  const T stored = static_cast<T>(value);
  __builtin_memcpy(to, &stored, sizeof stored);
}
CASYNC_INLINE void fill(std::byte* to, int byte, std::int64_t bytes) {
  __builtin_memset(to, byte, static_cast<std::size_t>(bytes));
}
/// NaN in each float.
CASYNC_INLINE void poison(std::byte* to, std::int64_t bytes) {
  const float nan = __builtin_nanf("");
  for (std::int64_t i = 0; i + 4 <= bytes; i += 4) __builtin_memcpy(to + i, &nan, sizeof nan);
}

// --- results

CASYNC_INLINE F32x16 unscaled(const F32x16& value, float factor) {
  return factor == 1.0F ? value : divide(value, lanes(factor));
}
template <Into kInto>
CASYNC_INLINE void deliver(const DecodeJob& job, std::int64_t i, std::int64_t count, const F32x16& value,
                           Finiteness& check) {
  F32x16 result = value;
  if constexpr (kInto != Into::set) {
    const F32x16 before = elements(static_cast<const float*>(job.out), i, count);
    if constexpr (kInto == Into::add)
      result = before + value;
    else if constexpr (kInto == Into::subtract)
      result = before - unscaled(value, job.divisor);
    else
      result = elements(job.accumulated, i, count) + before - unscaled(value, job.divisor);
  }
  if constexpr (kInto == Into::set || kInto == Into::add) check.see(result);
  put(job.out, i, count, result);
}
/// Leaves x, but for the `value` that decode will make of it, in the residual.
CASYNC_INLINE void lose(float* residual, std::int64_t i, std::int64_t count, const F32x16& x, const F32x16& value,
                        float mid) {
  put(residual, i, count, x - unscaled(value, mid));
}
/// n elements in chunks of kChunk <= 8: for the byte of each, the row of eight in `table`. Eight more may be written.
template <int kChunk, typename T>
CASYNC_INLINE void copy_rows(const T* table, const std::uint8_t* bytes, std::int64_t n, T* to) {
  const auto row = [&](std::int64_t chunk, std::uint64_t byte) __attribute__((always_inline)) {
    __builtin_memcpy(to + chunk * kChunk, table + 8 * byte, 8 * sizeof(T));  // what is too much the next one overwrites
  };
  std::int64_t chunk = 0;
  for (; (chunk + 8) * kChunk <= n; chunk += 8) {  // eight bytes are one load
    std::uint64_t eight = 0;
    __builtin_memcpy(&eight, bytes + chunk, 8);
    for (int k = 0; k < 8; ++k) row(chunk + k, eight >> (8 * k) & 255);
  }
  for (; chunk * kChunk < n; ++chunk) row(chunk, bytes[chunk]);
}
/// Before single elements are delivered: all others are zero.
template <Into kInto>
CASYNC_INLINE void deliver_zeros(const DecodeJob& job) {
  const std::int64_t n = job.facts.n;
  if constexpr (kInto == Into::set) __builtin_memset(job.out, 0, static_cast<std::size_t>(n) * sizeof(float));
  Finiteness check;
  if constexpr (kInto == Into::lose)
    for (std::int64_t i = 0; i < n; i += 16) deliver<kInto>(job, i, n - i < 16 ? n - i : 16, F32x16{}, check);
}
/// Returns what is there then.
template <Into kInto>
CASYNC_INLINE float deliver_one(const DecodeJob& job, std::int32_t at, float value) {
  if constexpr (kInto == Into::set)
    job.out[at] = value;
  else if constexpr (kInto == Into::add)
    job.out[at] += value;
  else
    job.out[at] -= value / job.divisor;
  return job.out[at];
}
/// Elements one behind the other, all others being zero. What belongs behind the unit's end goes nowhere; false if they
/// begin before it.
template <Into kInto>
CASYNC_INLINE bool deliver_neighbours(const DecodeJob& job, std::int64_t at, std::int64_t count, const F32x16& value,
                                      Finiteness& check) {
  if (at < 0) return false;
  if (count > job.facts.n - at) count = job.facts.n - at;
  if (count <= 0) return true;
  F32x16 result = value;
  if constexpr (kInto == Into::add) result = elements(static_cast<const float*>(job.out), at, count) + value;
  if constexpr (kInto == Into::subtract || kInto == Into::lose)
    result = elements(static_cast<const float*>(job.out), at, count) - unscaled(value, job.divisor);
  check.see(result);
  put(job.out, at, count, result);
  return true;
}
/// That something delivered is not finite.
inline void report(const DecodeJob& job) {
  if (job.nonfinite != nullptr) *job.nonfinite = true;
}
/// Takes what was encoded off the residual, which has x; `subtract` decodes.
inline EncodedUnit settle(const UnitJob& job, EncodedUnit encoded, std::int64_t (*subtract)(const DecodeJob&)) {
  if (encoded.nonfinite || encoded.bytes < 0) return encoded;
  subtract({.facts = job.facts,
            .payload = job.payload,
            .payload_end = job.payload + encoded.bytes,
            .scratch = job.scratch,
            .out = job.residual,
            .divisor = job.mid});
  encoded.settled = true;
  return encoded;
}
template <Into kInto>
void deliver_nan(const DecodeJob& job) {
  for (std::int64_t i = 0; i < job.facts.n; ++i) job.out[i] = __builtin_nanf("");
  report(job);
}

// --- single random numbers

/// Draw `site` of the file as a number below `limit`, for the unit's first element.
CASYNC_INLINE std::int32_t draw_below(const RandomKey& key, std::uint32_t site, std::int32_t limit) {
  return static_cast<std::int32_t>((std::int64_t{limit} * draw_one(key_of(key, site, false), key.coordinate)) >> 16);
}
/// Draw `site` in (0, 1), the same on every rank.
CASYNC_INLINE float shared_draw(const RandomKey& key, std::uint32_t site, std::int64_t element) {
  const std::int32_t r = draw_one(key_of(key, site, true), static_cast<std::uint64_t>(element));
  return (static_cast<float>(r) + 0.5F) / 65536.0F;
}

// --- 16-bit floats

CASYNC_INLINE F32x16 to_half(const F32x16& a) {
  std::uint16_t narrow[16];
  Float16::write(narrow, a);
  return Float16::read(narrow);
}
CASYNC_INLINE F32x16 to_bfloat16(const F32x16& a) {
  std::uint16_t narrow[16];
  BFloat16::write(narrow, a);
  return BFloat16::read(narrow);
}
CASYNC_INLINE float first_of(const F32x16& a) {
  float values[16];
  store(values, a);
  return values[0];
}
CASYNC_INLINE float to_half(float a) { return first_of(to_half(lanes(a))); }
CASYNC_INLINE float to_bfloat16(float a) { return first_of(to_bfloat16(lanes(a))); }

// --- reductions of integers

CASYNC_INLINE std::int32_t sum_of(const I32x16& a) {
  std::int32_t lane[16];
  __builtin_memcpy(lane, &a, sizeof lane);
  std::int32_t sum = 0;
  for (const std::int32_t one : lane) sum = add(sum, one);
  return sum;
}
/// The sums of kChunk neighbours each; the last may have fewer.
template <int kChunk>
CASYNC_INLINE void sum_chunks(const std::int32_t* from, std::int64_t n, std::int32_t* to) {
  std::int64_t i = 0;
  for (; i + kChunk <= n; i += kChunk, ++to) {
    std::int32_t sum = from[i];
    for (int j = 1; j < kChunk; ++j) sum = add(sum, from[i + j]);
    *to = sum;
  }
  if (i == n) return;
  std::int32_t sum = 0;
  for (; i < n; ++i) sum = add(sum, from[i]);
  *to = sum;
}

#if defined(__AVX2__)
/// The sums of eight chunks, two in sixteen bytes.
template <int kChunk>
CASYNC_INLINE void sum_eight_chunks(const std::uint8_t* from, std::uint8_t* to) {
  alignas(16) static constexpr auto kApart = [] {
    struct Places {
      std::uint8_t of[16]{};
    } places;
    for (int i = 0; i < 16; ++i)
      places.of[i] = static_cast<std::uint8_t>(i % 8 < kChunk ? i / 8 * kChunk + i % 8 : 0x80);
    return places;
  }();
  const __m128i apart = _mm_load_si128(reinterpret_cast<const __m128i*>(kApart.of));
  std::uint64_t sums[8];
  for (int pair = 0; pair < 4; ++pair) {
    const __m128i chunks = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * pair * kChunk));
    const __m128i two = _mm_sad_epu8(_mm_shuffle_epi8(chunks, apart), _mm_setzero_si128());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + 2 * pair), two);
  }
  for (int chunk = 0; chunk < 8; ++chunk) to[chunk] = static_cast<std::uint8_t>(sums[chunk]);
}
#endif
/// The same where no sum is more than 255; sixteen bytes behind `from` may be read.
template <int kChunk>
CASYNC_INLINE void sum_chunks(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  static_assert(kChunk <= 16);
  constexpr int kBytes = kChunk < 8 ? kChunk : 8;
  std::int64_t i = 0;
#if defined(__AVX2__)
  if constexpr (kChunk <= 8)
    for (; i + 8 * kChunk <= n; i += 8 * kChunk, to += 8) sum_eight_chunks<kChunk>(from + i, to);
#endif
  for (; i + kChunk <= n; i += kChunk, ++to) {
    std::uint64_t bytes = 0;
    __builtin_memcpy(&bytes, from + i, sizeof bytes);
    // The byte at place k of the product is the sum of those up to k.
    const std::uint64_t sums = bytes * (0x0101010101010101U >> (64 - 8 * kBytes));
    auto sum = static_cast<std::uint8_t>(sums >> (8 * (kBytes - 1)));
    for (int j = kBytes; j < kChunk; ++j) sum = static_cast<std::uint8_t>(sum + from[i + j]);
    *to = sum;
  }
  if (i == n) return;
  std::uint8_t sum = 0;
  for (; i < n; ++i) sum = static_cast<std::uint8_t>(sum + from[i]);
  *to = sum;
}

CASYNC_INLINE std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return b > 0 ? (a + b - 1) / b : 0; }
CASYNC_INLINE std::int32_t larger_magnitude(std::int32_t a, std::int32_t b) {
  return larger(magnitude(a), magnitude(b));
}
CASYNC_INLINE I32x16 larger_magnitude(const I32x16& a, const I32x16& b) { return larger(magnitude(a), magnitude(b)); }
CASYNC_INLINE float larger_magnitude(float a, float b) { return larger(magnitude(a), magnitude(b)); }
CASYNC_INLINE F32x16 larger_magnitude(const F32x16& a, const F32x16& b) { return larger(magnitude(a), magnitude(b)); }

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
