#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/reduce.hpp"

/// The product of two matrices in float32, with the order of additions of codec/cpu/kernels/operators/matmul.hpp: by
/// the fixed tree if the left side lies row after row; over runs of 128, runs in order, if it is a transposed view.
namespace casync::codec::cuda {

/// Row after row in memory; a transposed view of `rows` x `cols` lies there as cols x rows.
template <typename Source>
struct Matrix {
  Source values;
  std::int64_t rows;
  std::int64_t cols;
  bool transposed;

  CASYNC_DEVICE float operator()(std::int64_t row, std::int64_t col) const {
    return at(values, transposed ? col * rows + row : row * cols + col);
  }
};
template <typename Source>
CASYNC_DEVICE Matrix<Source> matrix(Source values, std::int64_t rows, std::int64_t cols, bool transposed) {
  return {values, rows, cols, transposed};
}

/// Inner sides up to here are a thread's own, with the sixteen lanes in its registers.
constexpr std::int64_t kShortInner = 64;

/// The tree over n <= 1024 products, in one thread.
template <typename Product>
CASYNC_DEVICE float tree_alone(std::int64_t n, const Product& product) {
  float lanes[16]{};
  for (std::int64_t i = 0; i < n; i += 16)
    for (int lane = 0; lane < 16; ++lane)
      if (i + lane < n) lanes[lane] = lanes[lane] + product(i + lane);
  for (int distance = 8; distance > 0; distance /= 2)
    for (int lane = 0; lane < distance; ++lane) lanes[lane] = lanes[lane] + lanes[lane + distance];
  return lanes[0];
}

/// The tree by a group of sixteen threads; the first of them has the sum.
template <typename Team, typename Product>
CASYNC_DEVICE float tree_of_group(const Team& team, std::int64_t n, const Product& product) {
  float sum = 0;
  for (std::int64_t block = 0; block < n; block += 1024) {
    const std::int64_t end = smaller(block + 1024, n);
    float lane = 0;
    for (std::int64_t i = block + team.rank() % 16; i < end; i += 16) lane = lane + product(i);
    sum = sum + fold<Add>(team, lane);
  }
  return sum;
}

template <typename Product>
CASYNC_DEVICE float in_runs(std::int64_t n, const Product& product) {
  float sum = 0;
  for (std::int64_t run = 0; run < n; run += 128) {
    float of_run = 0;
    for (std::int64_t i = run; i < smaller(run + 128, n); ++i) of_run = of_run + product(i);
    sum = run == 0 ? of_run : sum + of_run;
  }
  return sum;
}

/// out, row after row, has a.rows x b.cols elements; a.cols is b.rows.
template <typename Team, typename Left, typename Right>
CASYNC_DEVICE void matmul(const Team& team, const Matrix<Left>& a, const Matrix<Right>& b, float* out) {
  const bool grouped = !a.transposed && a.cols > kShortInner;
  const int threads = grouped ? 16 : 1;
  for (std::int64_t i = team.rank() / threads; i < a.rows * b.cols; i += team.size() / threads) {
    const std::int64_t row = i / b.cols;
    const std::int64_t col = i % b.cols;
    const auto product = [&](std::int64_t k) { return a(row, k) * b(k, col); };
    float sum = 0;
    if (a.transposed)
      sum = in_runs(a.cols, product);
    else if (grouped)
      sum = tree_of_group(team, a.cols, product);
    else
      sum = tree_alone(a.cols, product);
    if (team.rank() % threads == 0) out[i] = sum;
  }
  team.barrier();
}

}  // namespace casync::codec::cuda
