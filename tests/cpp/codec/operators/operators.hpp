#pragma once

#include <cstdint>

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
  std::int64_t (*matmul_scratch)(Matrix a, Matrix b);
  void (*matmul)(Matrix a, Matrix b, float* out, float* scratch);
  void (*orth)(const float* matrix, std::int64_t rows, std::int64_t cols, float* out, float* scratch);
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
