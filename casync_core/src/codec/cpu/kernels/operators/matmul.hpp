#pragma once

#include <type_traits>

#include "codec/cpu/kernels/simd.hpp"

/// The product of two matrices in float32, of which one is a gradient and the other has few columns: the gradient is
/// read once, from front to back, and there is little to compute for each of its elements.
///
/// Sums have one order at every instruction set. If the left side lies row after row, the inner side is contiguous, and
/// its products are summed as reduce(..., add) does: blocks of 1024, sixteen lanes, folded 8 4 2 1, blocks in order. If
/// the left side is a transposed view, the gradient's rows are the inner side: products are summed in order over runs
/// of 128, runs in order.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Row after row in memory; a transposed view of `rows` x `cols` lies there as cols x rows.
struct Matrix {
  const float* values;
  std::int64_t rows;
  std::int64_t cols;
  bool transposed = false;
};

constexpr std::int64_t kTreeBlock = 1024;
constexpr std::int64_t kRun = 128;
/// Columns from which on a vector holds neighbours of a row of the product, not of the inner side.
constexpr std::int64_t kWide = 64;
/// Columns of a few rows that fit into the first-level cache together.
constexpr std::int64_t kTile = 1024;
/// Rows of the gradient that are read side by side where they meet the same of the other side. The rows are streams for
/// the processor's prefetchers, so they are read for as long as possible before others are.
constexpr std::int64_t kPanel = 8;

// As many sums as there are registers for: rows, or vectors of one row, times columns of the other side.
#if defined(__AVX512BW__)
constexpr int kRowsAtOnce = 4;
constexpr int kColumnsAtOnce = 4;
#elif defined(__AVX2__)
constexpr int kRowsAtOnce = 1;
constexpr int kColumnsAtOnce = 4;
#else
constexpr int kRowsAtOnce = 1;
constexpr int kColumnsAtOnce = 2;
#endif

CASYNC_INLINE std::int64_t whole_vectors(std::int64_t n) { return (n + 15) / 16 * 16; }

/// Columns of the right side that are met together: as many as fit into the first-level cache. Of a few rows as many as
/// fit into the second, since less is computed with them than the product takes to be written, row after row.
CASYNC_INLINE std::int64_t tile_width(const Matrix& b) {
  const std::int64_t all = whole_vectors(b.cols);
  const std::int64_t fit = (b.rows <= 16 ? 64 : 8) * kTile / b.rows / 16 * 16;
  const std::int64_t width = fit < kWide ? kWide : fit;
  return width < all ? width : all;
}

/// Elements of a row of the gradient that are multiplied with `columns` of the other side before the next rows are: of
/// a few columns whole rows, as long as the sums fit into the second-level cache.
CASYNC_INLINE std::int64_t sums_width(std::int64_t columns) {
  const std::int64_t fit = 16 * kTile / columns / 16 * 16;
  return fit < kTile ? kTile : fit;
}
CASYNC_INLINE std::int64_t sums_of(std::int64_t columns) { return columns * sums_width(columns); }

/// What matmul and matmul_into need, in elements, and below what computed_matmul does.
CASYNC_INLINE std::int64_t matmul_scratch(const Matrix& a, const Matrix& b) {
  if (!a.transposed && b.cols >= kWide) return b.rows * tile_width(b);
  if (!a.transposed) return kPanel * kWide + (b.transposed ? 0 : b.cols * whole_vectors(b.rows));
  const std::int64_t copy = b.transposed ? b.rows * b.cols : 0;
  return copy + (a.rows <= b.cols ? sums_of(a.rows) : sums_of(b.cols) + b.cols * a.rows);
}
CASYNC_INLINE std::int64_t computed_matmul_scratch(const Matrix& a, const Matrix& b) {
  const std::int64_t copy = a.transposed == b.transposed ? b.cols * whole_vectors(b.rows) : 0;
  return copy + (a.transposed ? sums_of(b.cols) + b.cols * a.rows : 0);
}

/// A gradient that is there: up to sixteen elements from `i` on, in the order of memory. One that is computed is a
/// function of the same form.
struct Stored {
  const float* values;

  CASYNC_INLINE F32x16 operator()(std::int64_t i, std::int64_t count) const {
    return count == 16 ? load(values + i) : load_first(values + i, count);
  }
};

/// to[c][r] = from[r][c], whose rows are `stride` apart in `to`.
inline void transpose(const float* from, std::int64_t rows, std::int64_t cols, float* to, std::int64_t stride) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += 16)
    for (std::int64_t c0 = 0; c0 < cols; c0 += 16)
      for (std::int64_t c = c0; c < c0 + 16 && c < cols; ++c)
        for (std::int64_t r = r0; r < r0 + 16 && r < rows; ++r) to[c * stride + r] = from[r * cols + c];
}

/// One block of the tree, of n elements, for some rows of the left side, `stride` apart from element `at` on, and some
/// columns of the right one, which lie `b_stride` apart.
template <int kRows, int kColumns, typename Left>
CASYNC_INLINE void products(const Left& left, std::int64_t at, std::int64_t stride, const float* b,
                            std::int64_t b_stride, std::int64_t n, bool first, float* out, std::int64_t out_stride) {
  F32x16 sum[kRows][kColumns]{};
  const auto step = [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
    F32x16 row[kRows];
    for (int r = 0; r < kRows; ++r) row[r] = left(at + r * stride + i, count);
    for (int c = 0; c < kColumns; ++c) {
      const F32x16 column = Stored{b}(c * b_stride + i, count);
      for (int r = 0; r < kRows; ++r) sum[r][c] = sum[r][c] + row[r] * column;
    }
  };
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) step(i, 16);
  if (i < n) step(i, n - i);
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      float& value = out[r * out_stride + c];
      const float block = fold<Add>(sum[r][c]);
      value = first ? block : value + block;
    }
  }
}

/// Few columns on the right: `b` holds them as rows, `b_stride` apart.
template <int kRows, typename Left>
CASYNC_INLINE void products_of_rows(const Left& left, std::int64_t at, std::int64_t stride, std::int64_t n,
                                    const float* b, std::int64_t b_stride, std::int64_t columns, bool first,
                                    float* out) {
  std::int64_t c = 0;
  for (; c + kColumnsAtOnce <= columns; c += kColumnsAtOnce)
    products<kRows, kColumnsAtOnce>(left, at, stride, b + c * b_stride, b_stride, n, first, out + c, columns);
  for (; c < columns; ++c) products<kRows, 1>(left, at, stride, b + c * b_stride, b_stride, n, first, out + c, columns);
}

/// `rows` rows of the product, from row `panel` on.
template <typename Left>
CASYNC_INLINE void panel_of_narrow(const Left& left, std::int64_t inner, std::int64_t panel, std::int64_t rows,
                                   const float* b, std::int64_t b_stride, std::int64_t columns, float* out) {
  for (std::int64_t from = 0; from < inner; from += kTreeBlock) {
    const std::int64_t n = inner - from < kTreeBlock ? inner - from : kTreeBlock;
    const std::int64_t at = panel * inner + from;
    std::int64_t row = 0;
    for (; row + kRowsAtOnce <= rows; row += kRowsAtOnce)
      products_of_rows<kRowsAtOnce>(left, at + row * inner, inner, n, b + from, b_stride, columns, from == 0,
                                    out + row * columns);
    for (; row < rows; ++row)
      products_of_rows<1>(left, at + row * inner, inner, n, b + from, b_stride, columns, from == 0,
                          out + row * columns);
  }
}

template <typename Left>
inline void matmul_narrow(const Left& left, std::int64_t rows, std::int64_t inner, const float* b,
                          std::int64_t b_stride, std::int64_t columns, float* out) {
  const std::int64_t side_by_side = columns > kColumnsAtOnce ? kPanel : kRowsAtOnce;
  for (std::int64_t panel = 0; panel < rows; panel += side_by_side)
    panel_of_narrow(left, inner, panel, rows - panel < side_by_side ? rows - panel : side_by_side, b, b_stride, columns,
                    out + panel * columns);
}

/// Lanes `lane`, lane + kApart, lane + 2 kApart, ... of the tree, folded, for sixteen neighbours in each of kRows rows
/// of the product. What no element reaches is left out; it would add zeros.
template <int kApart, int kRows>
CASYNC_INLINE void folded(const float* a, std::int64_t a_stride, std::int64_t n, std::int64_t lane, const float* b,
                          std::int64_t b_stride, F32x16 (&sum)[kRows]) {
  if constexpr (kApart == 16) {
    for (std::int64_t i = lane; i < n; i += 16) {
      const F32x16 right = load(b + i * b_stride);
      for (int r = 0; r < kRows; ++r) {
        const F32x16 product = splat(a[r * a_stride + i]) * right;
        sum[r] = i == lane ? product : sum[r] + product;
      }
    }
  } else {
    folded<2 * kApart>(a, a_stride, n, lane, b, b_stride, sum);
    if (lane + kApart >= n) return;
    F32x16 high[kRows];
    folded<2 * kApart>(a, a_stride, n, lane + kApart, b, b_stride, high);
    for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + high[r];
  }
}

/// kRows rows of a tile of the product, `count` elements of each, the first of which is `first`; `b` has whole vectors.
/// `Inner` is an integer, or a constant where there is so little to compute that counting would cost as much.
template <int kRows, typename Inner, typename Sink>
CASYNC_INLINE void rows_of_tile(const float* a, Inner inner, const float* b, std::int64_t width, std::int64_t count,
                                std::int64_t first, std::int64_t columns, const Sink& sink) {
  const auto step = [&](std::int64_t c, std::int64_t lanes) __attribute__((always_inline)) {
    F32x16 sum[kRows]{};  // adding to 0 makes +0 of -0, as beginning with it does
    for (std::int64_t from = 0; from < inner; from += kTreeBlock) {
      const std::int64_t n = inner - from < kTreeBlock ? inner - from : kTreeBlock;
      F32x16 block[kRows];
      folded<1>(a + from, inner, n, 0, b + from * width + c, width, block);
      for (int r = 0; r < kRows; ++r) sum[r] = sum[r] + block[r];
    }
    for (int r = 0; r < kRows; ++r) sink(first + r * columns + c, lanes, sum[r]);
  };
  std::int64_t c = 0;
  for (; c + 16 <= count; c += 16) step(c, 16);
  if (c < count) step(c, count - c);
}

template <typename Inner, typename Sink>
inline void all_rows_of_tile(const Matrix& a, Inner inner, const float* b, std::int64_t width, std::int64_t count,
                             std::int64_t tile, std::int64_t columns, const Sink& sink) {
  std::int64_t row = 0;
  for (; row + 2 <= a.rows; row += 2)
    rows_of_tile<2>(a.values + row * a.cols, inner, b, width, count, row * columns + tile, columns, sink);
  if (row < a.rows)
    rows_of_tile<1>(a.values + row * a.cols, inner, b, width, count, row * columns + tile, columns, sink);
}

/// body(n), with n as a constant if it is one of kFew.
template <std::int64_t... kFew, typename Body>
CASYNC_INLINE void with_constant(std::int64_t n, const Body& body) {
  const bool few = ((n == kFew && (body(std::integral_constant<std::int64_t, kFew>()), true)) || ...);
  if (!few) body(n);
}

/// Many columns on the right: a tile of them is copied together, where it stays in the cache for all rows.
template <typename Sink>
inline void matmul_wide(const Matrix& a, const Matrix& b, float* copy, const Sink& sink) {
  const std::int64_t width = tile_width(b);
  for (std::int64_t tile = 0; tile < b.cols; tile += width) {
    const std::int64_t count = b.cols - tile < width ? b.cols - tile : width;
    if (count < width) __builtin_memset(copy, 0, static_cast<std::size_t>(b.rows * width) * sizeof(float));
    if (b.transposed)
      transpose(b.values + tile * b.rows, count, b.rows, copy, width);
    else
      for (std::int64_t i = 0; i < b.rows; ++i)
        __builtin_memcpy(copy + i * width, b.values + i * b.cols + tile,
                         static_cast<std::size_t>(count) * sizeof(float));
    const auto rows = [&](auto inner) { all_rows_of_tile(a, inner, copy, width, count, tile, b.cols, sink); };
    with_constant<1, 2, 4, 8>(a.cols, rows);
  }
}

/// Adds `rows` rows of the wide side, each `width` long, from element `at` on, times as many elements of kColumns
/// columns of the narrow one, to the sums, which are `apart` for each column.
template <int kColumns, int kVectors, typename Wide>
CASYNC_INLINE void add_rows(const Wide& wide, std::int64_t at, std::int64_t width, std::int64_t count,
                            const float* narrow, std::int64_t columns, std::int64_t rows, bool first, float* sums,
                            std::int64_t apart) {
  F32x16 sum[kColumns][kVectors];
  for (int c = 0; c < kColumns; ++c)
    for (int v = 0; v < kVectors; ++v) sum[c][v] = first ? F32x16{} : load(sums + c * apart + 16 * v);
  for (std::int64_t row = 0; row < rows; ++row) {
    F32x16 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = wide(at + row * width + 16 * v, count);
    for (int c = 0; c < kColumns; ++c) {
      const F32x16 factor = splat(narrow[row * columns + c]);
      for (int v = 0; v < kVectors; ++v) sum[c][v] = sum[c][v] + value[v] * factor;
    }
  }
  for (int c = 0; c < kColumns; ++c)
    for (int v = 0; v < kVectors; ++v) store(sums + c * apart + 16 * v, sum[c][v]);
}

/// out[c][i] = the sum over rows of wide[row][i] * narrow[row][c], in runs.
template <int kColumns, typename Wide>
CASYNC_INLINE void add_panel(const Wide& wide, std::int64_t at, std::int64_t width, std::int64_t count,
                             const float* narrow, std::int64_t columns, std::int64_t rows, bool first, float* sums,
                             std::int64_t apart) {
  std::int64_t i = 0;
  for (; i + 16 * kRowsAtOnce <= count; i += 16 * kRowsAtOnce)
    add_rows<kColumns, kRowsAtOnce>(wide, at + i, width, 16, narrow, columns, rows, first, sums + i, apart);
  for (; i + 16 <= count; i += 16)
    add_rows<kColumns, 1>(wide, at + i, width, 16, narrow, columns, rows, first, sums + i, apart);
  if (i < count) add_rows<kColumns, 1>(wide, at + i, width, count - i, narrow, columns, rows, first, sums + i, apart);
}

template <typename Wide>
inline void matmul_of_columns(const Wide& wide, std::int64_t width, const float* narrow, std::int64_t columns,
                              std::int64_t rows, float* out, float* sums) {
  const std::int64_t most = sums_width(columns);
  for (std::int64_t tile = 0; tile < width; tile += most) {
    const std::int64_t count = width - tile < most ? width - tile : most;
    for (std::int64_t run = 0; run < rows; run += kRun) {
      const std::int64_t run_end = rows - run < kRun ? rows : run + kRun;
      for (std::int64_t row = run; row < run_end; row += kPanel) {
        const std::int64_t panel = run_end - row < kPanel ? run_end - row : kPanel;
        const std::int64_t at = row * width + tile;
        std::int64_t c = 0;
        for (; c + kColumnsAtOnce <= columns; c += kColumnsAtOnce)
          add_panel<kColumnsAtOnce>(wide, at, width, count, narrow + row * columns + c, columns, panel, row == run,
                                    sums + c * most, most);
        for (; c < columns; ++c)
          add_panel<1>(wide, at, width, count, narrow + row * columns + c, columns, panel, row == run, sums + c * most,
                       most);
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        float* const to = out + c * width + tile;
        const float* const sum = sums + c * most;
        for (std::int64_t i = 0; i < count; ++i) to[i] = run == 0 ? sum[i] : to[i] + sum[i];
      }
    }
  }
}

/// `sink(i, count, value)` gets up to sixteen neighbours of the product at a time; `a` is no transposed view.
template <typename Sink>
inline void matmul_into(const Matrix& a, const Matrix& b, float* scratch, const Sink& sink) {
  if (b.cols >= kWide) return matmul_wide(a, b, scratch, sink);
  float* const panel = scratch;
  const float* right = b.values;
  const std::int64_t stride = b.transposed ? b.rows : whole_vectors(b.rows);
  if (!b.transposed) {
    transpose(b.values, b.rows, b.cols, scratch + kPanel * kWide, stride);
    right = scratch + kPanel * kWide;
  }
  for (std::int64_t row = 0; row < a.rows; row += kPanel) {
    const std::int64_t rows = a.rows - row < kPanel ? a.rows - row : kPanel;
    panel_of_narrow(Stored{a.values}, a.cols, row, rows, right, stride, b.cols, panel);
    for (std::int64_t i = 0; i < rows * b.cols; i += 16) {
      const std::int64_t count = rows * b.cols - i < 16 ? rows * b.cols - i : 16;
      sink(row * b.cols + i, count, load_first(panel + i, count));
    }
  }
}

/// out, row after row, has a.rows x b.cols elements; a.cols is b.rows, and none is 0. Faster where `scratch` is aligned
/// to 64 bytes.
inline void matmul(const Matrix& a, const Matrix& b, float* out, float* scratch) {
  if (!a.transposed && b.cols < kWide) {
    const Stored left{a.values};
    if (b.transposed) return matmul_narrow(left, a.rows, a.cols, b.values, b.rows, b.cols, out);
    const std::int64_t stride = whole_vectors(b.rows);
    transpose(b.values, b.rows, b.cols, scratch, stride);
    return matmul_narrow(left, a.rows, a.cols, scratch, stride, b.cols, out);
  }
  if (!a.transposed) {
    return matmul_wide(a, b, scratch,
                       [&](std::int64_t i, std::int64_t count, const F32x16& value) __attribute__((always_inline)) {
                         count == 16 ? store(out + i, value) : store_first(out + i, value, count);
                       });
  }
  const float* right = b.values;
  if (b.transposed) {
    transpose(b.values, b.cols, b.rows, scratch, b.cols);
    right = scratch;
    scratch += b.rows * b.cols;
  }
  if (a.rows <= b.cols) return matmul_of_columns(Stored{right}, b.cols, a.values, a.rows, a.cols, out, scratch);
  float* const columns = scratch + sums_of(b.cols);
  matmul_of_columns(Stored{a.values}, a.rows, right, b.cols, a.cols, columns, scratch);
  transpose(columns, b.cols, a.rows, out, b.cols);
}

/// The same of a left side that is nowhere: `at(i, count)` gives up to sixteen elements from `i` on in the order of
/// memory, more than once if the right side has many columns; a.values is not read.
template <typename At>
inline void computed_matmul(const Matrix& a, const At& at, const Matrix& b, float* out, float* scratch) {
  const float* right = b.values;
  std::int64_t stride = a.transposed ? b.cols : b.rows;
  if (a.transposed == b.transposed) {
    if (!a.transposed) stride = whole_vectors(b.rows);
    // What the other side has as columns is needed as rows.
    if (b.transposed)
      transpose(b.values, b.cols, b.rows, scratch, stride);
    else
      transpose(b.values, b.rows, b.cols, scratch, stride);
    right = scratch;
    scratch += b.cols * whole_vectors(b.rows);
  }
  if (!a.transposed) return matmul_narrow(at, a.rows, a.cols, right, stride, b.cols, out);
  float* const columns = scratch + sums_of(b.cols);
  matmul_of_columns(at, a.rows, right, b.cols, a.cols, columns, scratch);
  transpose(columns, b.cols, a.rows, out, b.cols);
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
