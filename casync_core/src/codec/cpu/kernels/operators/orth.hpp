#pragma once

#include "codec/cpu/kernels/operators/matmul.hpp"
#include "codec/cpu/kernels/operators/rounding.hpp"

/// Columns made orthonormal by modified Gram-Schmidt, in float32 from left to right: from each column its projections
/// on those before it are taken off one after the other, then it is divided by its length. Sums are those of
/// reduce(..., add). A column of which no more than 2^-16 is left has vanished: what is left is rounding, and may point
/// along the others. Unit vector c takes the place of column c then, so that a power method that starts warm finds what
/// comes after a gradient of zeros; if that vanishes too, the column is 0.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

CASYNC_INLINE float inner_product(const float* a, const float* b, std::int64_t n) {
  float sum = 0;
  for (std::int64_t from = 0; from < n; from += kTreeBlock)
    products<1, 1>(Stored{a}, from, 0, b + from, 0, n - from < kTreeBlock ? n - from : kTreeBlock, from == 0, &sum, 0);
  return sum;
}

/// Takes the projections on the `before` columns off and makes the length 1; false if nothing is left.
inline bool made_orthonormal(float* column, const float* columns, std::int64_t before, std::int64_t rows) {
  const float length = square_root(inner_product(column, column, rows));
  for (std::int64_t b = 0; b < before; ++b) {
    const float* const unit = columns + b * rows;
    const float along = inner_product(unit, column, rows);
    for (std::int64_t i = 0; i < rows; ++i) column[i] -= along * unit[i];
  }
  const float left = square_root(inner_product(column, column, rows));
  const bool vanished = left <= 0x1p-16F * length;
  for (std::int64_t i = 0; i < rows; ++i) column[i] = vanished ? 0.0F : column[i] / left;
  return !vanished;
}

/// rows x cols, row after row. `out` may be `matrix`; `scratch` has rows * cols elements.
inline void orth(const float* matrix, std::int64_t rows, std::int64_t cols, float* out, float* scratch) {
  transpose(matrix, rows, cols, scratch, rows);
  for (std::int64_t c = 0; c < cols; ++c) {
    float* const column = scratch + c * rows;
    if (made_orthonormal(column, scratch, c, rows)) continue;
    if (c < rows) column[c] = 1.0F;
    made_orthonormal(column, scratch, c, rows);
  }
  transpose(scratch, cols, rows, out, cols);
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
