#pragma once

#include "codec/cuda/kernels/operators/matmul.hpp"
#include "codec/cuda/kernels/operators/rounding.hpp"

/// Columns made orthonormal by modified Gram-Schmidt, in the order of codec/cpu/kernels/operators/orth.hpp, where it is
/// explained.
namespace casync::codec::cuda {

template <typename Team>
CASYNC_DEVICE float inner_product(const Team& team, float* work, const float* a, const float* b, std::int64_t n) {
  SumOf<float> sum{work};
  tree(team, Blocks{n, n}, [&](std::int64_t i) { sum.see(a[i] * b[i]); }, sum);
  return sum.value;
}

/// rows x cols, row after row; `columns` has rows * cols elements.
template <typename Team, typename Source>
CASYNC_DEVICE void orth(const Team& team, float* work, Source matrix, std::int64_t rows, std::int64_t cols, float* out,
                        float* columns) {
  const auto each = [&](std::int64_t count, const auto& change) {
    for (std::int64_t i = team.rank(); i < count; i += team.size()) change(i);
    team.barrier();
  };
  each(rows * cols, [&](std::int64_t i) { columns[i % cols * rows + i / cols] = at(matrix, i); });
  // Takes the projections on the columns before c off and makes the length 1; false if nothing is left.
  const auto made_orthonormal = [&](std::int64_t c) {
    float* const column = columns + c * rows;
    const float length = square_root(inner_product(team, work, column, column, rows));
    for (std::int64_t before = 0; before < c; ++before) {
      const float* const unit = columns + before * rows;
      const float along = inner_product(team, work, unit, column, rows);
      each(rows, [&](std::int64_t i) { column[i] = column[i] - along * unit[i]; });
    }
    const float left = square_root(inner_product(team, work, column, column, rows));
    const bool vanished = left <= 0x1p-16F * length;
    each(rows, [&](std::int64_t i) { column[i] = vanished ? 0.0F : column[i] / left; });
    return !vanished;
  };
  for (std::int64_t c = 0; c < cols; ++c) {
    if (made_orthonormal(c)) continue;
    each(rows, [&](std::int64_t i) { columns[c * rows + i] = i == c ? 1.0F : 0.0F; });
    made_orthonormal(c);
  }
  each(rows * cols, [&](std::int64_t i) { out[i] = columns[i % cols * rows + i / cols]; });
}

}  // namespace casync::codec::cuda
