#include <cmath>

#include "each_isa.hpp"

namespace casync::test {
namespace {

/// Modified Gram-Schmidt in the order that docs/compll.md states, column by column.
std::vector<float> orthonormal(const std::vector<float>& matrix, std::size_t rows, std::size_t cols) {
  std::vector<std::vector<float>> column(cols, std::vector<float>(rows));
  const auto inner = [&](const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> product(rows);
    for (std::size_t i = 0; i < rows; ++i) product[i] = a[i] * b[i];
    return tree_sum(product);
  };
  const auto vanishes = [&](std::size_t c) {
    const float length = std::sqrt(inner(column[c], column[c]));
    for (std::size_t b = 0; b < c; ++b) {
      const float along = inner(column[b], column[c]);
      for (std::size_t i = 0; i < rows; ++i) column[c][i] = column[c][i] - along * column[b][i];
    }
    const float left = std::sqrt(inner(column[c], column[c]));
    const bool nothing = left <= length / 65536;
    for (float& value : column[c]) value = nothing ? 0.0F : value / left;
    return nothing;
  };
  for (std::size_t c = 0; c < cols; ++c) {
    for (std::size_t i = 0; i < rows; ++i) column[c][i] = matrix[i * cols + c];
    if (!vanishes(c)) continue;
    if (c < rows) column[c][c] = 1;
    vanishes(c);
  }
  std::vector<float> out(rows * cols);
  for (std::size_t c = 0; c < cols; ++c)
    for (std::size_t i = 0; i < rows; ++i) out[i * cols + c] = column[c][i];
  return out;
}

/// Whether each two columns are orthogonal, and each is of length 1 or 0.
void expect_orthonormal(const std::vector<float>& q, std::size_t rows, std::size_t cols) {
  for (std::size_t a = 0; a < cols; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double inner = 0;
      for (std::size_t i = 0; i < rows; ++i)
        inner += static_cast<double>(q[i * cols + a]) * static_cast<double>(q[i * cols + b]);
      const double expected = a == b && inner != 0 ? 1 : 0;
      EXPECT_NEAR(inner, expected, a == b ? 1e-5 : 1e-3);
    }
  }
}

void expect_orth(const std::vector<float>& matrix, std::size_t rows, std::size_t cols) {
  const std::vector<float> expected = orthonormal(matrix, rows, cols);
  expect_orthonormal(expected, rows, cols);
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found = matrix;
    std::vector<float> scratch(rows * cols);
    operators.orth(found.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), found.data(),
                   scratch.data());
    EXPECT_TRUE(same_bits(found, expected)) << rows << " x " << cols;
  });
}

std::vector<float> normal_matrix(std::size_t rows, std::size_t cols) {
  Seeded random(rows * cols);
  std::vector<float> out(rows * cols);
  for (float& value : out) value = static_cast<float>(random.normal());
  return out;
}

TEST(Orth, MakesColumnsOrthonormalInOneOrder) {
  const std::size_t shapes[][2]{{1, 1}, {5, 2}, {16, 16}, {1000, 4}, {1025, 8}, {4096, 32}, {30522, 4}};
  for (const auto& shape : shapes) expect_orth(normal_matrix(shape[0], shape[1]), shape[0], shape[1]);
}

TEST(Orth, PutsAUnitVectorInPlaceOfAColumnThatVanishes) {
  std::vector<float> matrix = normal_matrix(500, 4);
  for (std::size_t i = 0; i < 500; ++i) {
    matrix[4 * i + 1] = -3 * matrix[4 * i];
    matrix[4 * i + 2] = 0;
  }
  expect_orth(matrix, 500, 4);
  const std::vector<float> q = orthonormal(matrix, 500, 4);
  for (std::size_t c = 1; c <= 2; ++c) EXPECT_GT(q[4 * c + c], 0.9F) << "mostly unit vector " << c;
  expect_orth(std::vector<float>(12), 4, 3);
  EXPECT_EQ(orthonormal(std::vector<float>(12), 4, 3), (std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}));
  std::vector<float> only_second(8);  // whose direction is the unit vector that would take the second column's place
  only_second[2] = 5;
  EXPECT_EQ(orthonormal(only_second, 4, 2), (std::vector<float>{0, 0, 1, 0, 0, 0, 0, 0}));
  expect_orth(only_second, 4, 2);
  expect_orth(normal_matrix(3, 5), 3, 5);  // more columns than there are directions
}

}  // namespace
}  // namespace casync::test
