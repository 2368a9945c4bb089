#pragma once

#include "codec/cpu/kernels/operators/append.hpp"

/// Runs: `runlength` finds those of one value, `repeat` writes values as often as counts say. Nothing in them branches
/// on how long a run is, unless it is very long: that cannot be guessed.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Bit i: whether from[i] is `value`, for 64 bytes.
CASYNC_INLINE std::uint64_t equal_bytes(const std::uint8_t* from, std::uint8_t value) {
#if defined(__AVX512BW__)
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(from), _mm512_set1_epi8(static_cast<char>(value)));
#elif defined(__SSE2__)
  std::uint64_t bits = 0;
  for (int k = 0; k < 4; ++k) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + k);
    const int sixteen = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(static_cast<char>(value))));
    bits |= static_cast<std::uint64_t>(sixteen) << (16 * k);
  }
  return bits;
#else
  std::uint64_t bits = 0;
  for (int k = 0; k < 64; ++k) bits |= static_cast<std::uint64_t>(from[k] == value) << k;
  return bits;
#endif
}

/// Runs of `value`, each as long as it can be but no longer than `longest` >= 1, and every other element alone. Returns
/// how many runs there are; `heads` and `lengths` have room for n + kSlack.
template <typename Length>
std::int64_t runlength(const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
                       std::uint8_t* heads, Length* lengths) {
  std::int64_t runs = 0;
  const auto run_of = [&](std::int64_t count) __attribute__((always_inline)) {
    const auto four = [&] {
      for (int j = 0; j < 4; ++j) {
        heads[runs + j] = value;
        lengths[runs + j] = static_cast<Length>(longest);
      }
    };
    for (; count > 4 * longest; count -= 4 * longest, runs += 4) four();
    four();
    const std::int64_t parts = (count > 0) + (count > longest) + (count > 2 * longest) + (count > 3 * longest);
    const std::int64_t whole = parts > 0 ? parts - 1 : 0;
    lengths[runs + whole] = static_cast<Length>(count - whole * longest);
    runs += parts;
  };
  std::int64_t start = 0;  // of what is not yet in a run; up to where we are it is all `value`
  for (std::int64_t i = 0; i < n; i += 64) {
    std::uint64_t others = 0;
    if (i + 64 <= n) {
      others = ~equal_bytes(values + i, value);
    } else {
      for (std::int64_t j = i; j < n; ++j) others |= static_cast<std::uint64_t>(values[j] != value) << (j - i);
    }
    if (others == ~std::uint64_t{0}) {
      run_of(i - start);
      __builtin_memcpy(heads + runs, values + i, 64);
      for (int j = 0; j < 64; ++j) lengths[runs + j] = 1;
      runs += 64;
      start = i + 64;
      continue;
    }
    for (; others != 0; others &= others - 1) {
      const std::int64_t at = i + __builtin_ctzll(others);
      run_of(at - start);
      heads[runs] = values[at];
      lengths[runs++] = 1;
      start = at + 1;
    }
  }
  run_of(n - start);
  return runs;
}

/// The same with a byte for each run: run[length] for one of `value`, alone[other] for one of anything else.
/// `meanwhile(i, count)` is called before it goes through that many from i on.
template <typename Meanwhile>
std::int64_t runlength(const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
                       const std::uint8_t* alone, const std::uint8_t* run, std::uint8_t* codes,
                       const Meanwhile& meanwhile) {
  std::int64_t runs = 0;
  const auto run_of = [&](std::int64_t count) __attribute__((always_inline)) {
    for (; count > longest; count -= longest) codes[runs++] = run[longest];
    codes[runs] = run[count];  // written over if there is none
    runs += count > 0;
  };
  std::int64_t start = 0;  // of what is not yet in a run; up to where we are it is all `value`
  const auto other_at = [&](std::int64_t at) __attribute__((always_inline)) {
    run_of(at - start);
    codes[runs++] = alone[values[at]];
    start = at + 1;
  };
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    meanwhile(i, 64);
    for (std::uint64_t others = ~equal_bytes(values + i, value); others != 0; others &= others - 1)
      other_at(i + __builtin_ctzll(others));
  }
  for (; i < n; ++i)
    if (values[i] != value) other_at(i);
  run_of(n - start);
  return runs;
}

/// Of a payload, where arrays begin at any byte.
template <typename T>
CASYNC_INLINE T element_at(const T* from, std::int64_t i) {
  T value;
  __builtin_memcpy(&value, from + i, sizeof value);
  return value;
}
template <typename Values>
CASYNC_INLINE auto element_at(const Values& from, std::int64_t i) {
  return from[i];
}

/// values[0] counts[0] times, values[1] counts[1] times, ... False, and nothing is written, if the m counts, of which
/// none may be negative, do not add up to n. `Values` is a pointer, or whatever gives an element for an index.
template <typename T, typename Values, typename Count>
bool repeat(const Values& values, const Count* counts, std::int64_t m, std::int64_t n, T* out) {
  std::int64_t total = 0;
  bool negative = false;
  for (std::int64_t i = 0; i < m; ++i) {
    const Count count = element_at(counts, i);
    total += static_cast<std::int64_t>(count);
    negative |= count < Count{};
  }
  if (negative || total != n) return false;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    const T value = element_at(values, i);
    const auto count = static_cast<std::int64_t>(element_at(counts, i));
    std::int64_t written = 0;
    if (at + 16 <= n) {  // what is too much is written over
      for (int j = 0; j < 16; ++j) out[at + j] = value;
      written = 16;
    }
    for (; written < count; ++written) out[at + written] = value;
    at += count;
  }
  return true;
}

/// What repeat writes where bytes say both, value_of[byte] count_of[byte] times: piece by piece, so that what reads it
/// finds it in the first-level cache.
class Repeated {
 public:
  static constexpr std::int64_t kMost = 128;

  CASYNC_INLINE Repeated(const std::uint8_t* codes, std::int64_t m, const std::uint8_t* value_of,
                         const std::int32_t* count_of)
      : code_(codes), end_(codes + m), value_of_(value_of), count_of_(count_of) {
    int repeated = -1;
    for (int byte = 0; byte < 256; ++byte) {
      if (count_of[byte] > 1 && repeated < 0) repeated = value_of[byte];
      alone_ &= count_of[byte] == 0 || count_of[byte] == 1 || (count_of[byte] > 1 && value_of[byte] == repeated);
    }
    value_ = static_cast<std::uint8_t>(repeated);
  }

  /// The next n <= kMost values, until it is called again. Something or other if there are not as many.
  CASYNC_INLINE const std::uint8_t* next(std::int64_t n) {
    if (alone_)
      of_one_value(n);
    else
      of_any(n);
    return piece_;
  }

  /// Whether the counts, of which none may be negative, add up to what was asked for.
  CASYNC_INLINE bool all() const {
    bool none = left_ == 0 && !failed_;
    for (const std::uint8_t* code = code_; code != end_; ++code) none &= count_of_[*code] == 0;
    return none;
  }

 private:
  CASYNC_INLINE void of_one_value(std::int64_t n) {
    __builtin_memset(piece_, value_, kMost);  // it is everywhere at first
    std::int64_t at = left_;
    for (; code_ != end_ && at < n; ++code_) {
      piece_[at] = value_of_[*code_];
      at += count_of_[*code_];
    }
    left_ = at - n;
  }

  inline void of_any(std::int64_t n) {
    for (std::int64_t at = 0; at < n && !failed_;) {
      if (left_ > 0) {
        const std::int64_t count = left_ < n - at ? left_ : n - at;
        __builtin_memset(piece_ + at, value_, static_cast<std::size_t>(count));
        at += count;
        left_ -= count;
      } else if (code_ != end_) {
        value_ = value_of_[*code_];
        left_ = count_of_[*code_++];
        failed_ = left_ < 0;
      } else {
        failed_ = true;
      }
    }
  }

  alignas(64) std::uint8_t piece_[kMost]{};
  const std::uint8_t* code_;
  const std::uint8_t* end_;
  const std::uint8_t* value_of_;
  const std::int32_t* count_of_;
  std::int64_t left_ = 0;  // of a run that is longer than what was asked for
  std::uint8_t value_ = 0;
  bool alone_ = true;  // whether no other value is repeated, and no count is negative
  bool failed_ = false;
};

/// All of it. Part may be written even if it is false.
inline bool repeat(const std::uint8_t* codes, const std::uint8_t* value_of, const std::int32_t* count_of,
                   std::int64_t m, std::int64_t n, std::uint8_t* out) {
  Repeated runs(codes, m, value_of, count_of);
  for (std::int64_t at = 0; at < n; at += Repeated::kMost) {
    const std::int64_t count = n - at < Repeated::kMost ? n - at : Repeated::kMost;
    __builtin_memcpy(out + at, runs.next(count), static_cast<std::size_t>(count));
  }
  return runs.all();
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
