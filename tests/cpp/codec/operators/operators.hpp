#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/cpu/kernels/kernels.hpp"

/// The operators of codec/cpu/kernels/operators as functions, one table per instruction set as the codecs' kernels
/// have: they are of internal linkage, and compiled into what calls them. `operators.cc` fills the tables; like a
/// kernel it uses nothing of the standard library.
namespace casync::codec {

struct Operators {
  /// Appends the lanes of values and their indices that masks of sixteen bits choose; n is a multiple of 16.
  std::int64_t (*append)(const float* values, const std::uint16_t* masks, std::int64_t n, float* value_out,
                         std::int32_t* index_out);

  float (*nth_largest)(const float* values, std::int64_t n, std::int64_t k);
  float (*nth_smallest)(const float* values, std::int64_t n, std::int64_t k);
  std::int32_t (*nth_largest_integer)(const std::int32_t* values, std::int64_t n, std::int64_t k);
  std::int32_t (*nth_smallest_integer)(const std::int32_t* values, std::int64_t n, std::int64_t k);
  std::int64_t (*topk)(const float* values, std::int64_t n, std::int64_t k, std::int32_t* index_out, float* value_out,
                       std::int32_t* index_scratch, float* value_scratch);
  std::int64_t (*topk_integers)(const std::int32_t* values, std::int64_t n, std::int64_t k, std::int32_t* index_out,
                                std::int32_t* value_out, std::int32_t* index_scratch, std::int32_t* value_scratch);

  /// An element function over an array, sixteen at a time (n is a multiple of 16) and one by one.
  struct OfFloats {
    void (*sixteen)(const float* from, std::int64_t n, float* to);
    void (*one)(const float* from, std::int64_t n, float* to);
  };
  OfFloats exp2, log2, cosine, round_nearest, round_down, round_up, square_root;

  struct OfIntegers {
    void (*sixteen)(const std::int32_t* a, const std::int32_t* b, std::int64_t n, std::int32_t* to);
    void (*one)(const std::int32_t* a, const std::int32_t* b, std::int64_t n, std::int32_t* to);
  };
  OfIntegers minus, magnitude, shift_left, shift_right, divide, remainder;
  struct ByConstant {
    std::int32_t by;
    OfIntegers divide, remainder;
  };
  ByConstant divide_by[13];

  struct Matrix {
    const float* values;
    std::int64_t rows, cols;
    bool transposed;
  };
  struct Matmul {
    std::int64_t (*scratch)(const Matrix& a, const Matrix& b);
    void (*run)(const Matrix& a, const Matrix& b, float* out, float* scratch);
  };
  /// Of sides that are there; of a left one that is computed from its elements; into a function, for a left side that
  /// is no transposed view.
  Matmul matmul, computed_matmul, matmul_into;
  void (*orth)(const float* matrix, std::int64_t rows, std::int64_t cols, float* out, float* scratch);

  std::int64_t (*runlength)(const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
                            std::uint8_t* heads, std::int32_t* lengths);
  std::int64_t (*runlength_bytes)(const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
                                  std::uint8_t* heads, std::uint8_t* lengths);
  bool (*repeat)(const std::uint8_t* values, const std::int32_t* counts, std::int64_t m, std::int64_t n,
                 std::uint8_t* out);
  /// Of 0, 1, 2, ...
  bool (*repeat_range)(const std::uint8_t* counts, std::int64_t m, std::int64_t n, std::int32_t* out);
  std::int64_t (*code_runs)(const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
                            const std::uint8_t* alone, const std::uint8_t* run, std::uint8_t* codes);
  bool (*repeat_codes)(const std::uint8_t* codes, const std::uint8_t* value_of, const std::int32_t* count_of,
                       std::int64_t m, std::int64_t n, std::uint8_t* out);

  void (*hadamard)(const float* values, std::int64_t n, float* out);

  std::int32_t (*draw_one)(const RandomKey& key, std::uint64_t coordinate);
  void (*draw_sixteen)(const RandomKey& key, std::uint64_t coordinate, std::int32_t* out);

  /// By key alone.
  struct Keyed {
    std::int32_t key, number;
  };
  void (*stable_sort)(Keyed* data, Keyed* spare, std::int64_t n);
};

namespace baseline {
extern const Operators kOperators;
}
namespace avx2 {
extern const Operators kOperators;
}
namespace avx512 {
extern const Operators kOperators;
}

}  // namespace casync::codec
