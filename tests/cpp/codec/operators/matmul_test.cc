#include <cmath>

#include "each_isa.hpp"

namespace casync::test {
namespace {

using View = codec::Operators::Matrix;

float at(const View& matrix, std::int64_t row, std::int64_t col) {
  return matrix.transposed ? matrix.values[col * matrix.rows + row] : matrix.values[row * matrix.cols + col];
}

/// The sum of products whose left side is transposed: runs of 128.
float runs(const std::vector<float>& x) {
  float total = 0;
  for (std::size_t from = 0; from < x.size(); from += 128) {
    float run = 0;
    for (std::size_t i = from; i < std::min(from + 128, x.size()); ++i) run = run + x[i];
    total = total + run;
  }
  return total;
}

std::vector<float> matrix(std::int64_t count, std::uint64_t seed) {
  Seeded random(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& value : out) value = random.uniform() < 0.1 ? -0.0F : static_cast<float>(random.normal());
  return out;
}

void expect_product(std::int64_t rows, std::int64_t inner, std::int64_t cols) {
  const std::vector<float> left = matrix(rows * inner, 1);
  const std::vector<float> right = matrix(inner * cols, 2);
  for (const bool left_transposed : {false, true}) {
    for (const bool right_transposed : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(inner) + " x " + std::to_string(cols) +
                   (left_transposed ? ", left transposed" : "") + (right_transposed ? ", right transposed" : ""));
      const View a{left.data(), rows, inner, left_transposed};
      const View b{right.data(), inner, cols, right_transposed};
      std::vector<float> expected;
      std::vector<float> product(static_cast<std::size_t>(inner));
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) {
          double exact = 0;
          double magnitudes = 0;
          for (std::int64_t k = 0; k < inner; ++k) {
            product[static_cast<std::size_t>(k)] = at(a, i, k) * at(b, k, j);
            const double one = static_cast<double>(at(a, i, k)) * static_cast<double>(at(b, k, j));
            exact += one;
            magnitudes += std::fabs(one);
          }
          expected.push_back(left_transposed ? runs(product) : tree_sum(product));
          ASSERT_NEAR(expected.back(), exact, 1e-5 * magnitudes);
        }
      }
      with_each_isa([&](const codec::Operators& operators) {
        for (const auto& [needs, matmul] : {operators.matmul, operators.computed_matmul, operators.matmul_into}) {
          if (left_transposed && matmul == operators.matmul_into.run) continue;
          std::vector<float> scratch(static_cast<std::size_t>(needs(a, b) + 1), 7.0F);
          std::vector<float> found(expected.size() + 1, 7.0F);
          matmul(a, b, found.data(), scratch.data());
          EXPECT_EQ(found.back(), 7.0F);
          EXPECT_EQ(scratch.back(), 7.0F);
          found.pop_back();
          EXPECT_TRUE(same_bits(found, expected));
        }
      });
    }
  }
}

TEST(Matmul, SumsInTheOrderOfTheReferenceAtEveryInstructionSet) {
  const std::int64_t shapes[][3]{{1, 1, 1},       {3, 5, 2},       {17, 33, 4},    {64, 27, 4},     {100, 1024, 1},
                                 {33, 1025, 4},   {7, 4099, 3},    {1030, 130, 5}, {1040, 129, 32}, {4, 1000, 1100},
                                 {300, 4, 500},   {129, 17, 1029}, {65, 32, 64},   {2, 1100, 70},   {1, 2500, 1},
                                 {1050, 1100, 2}, {3, 5, 300},     {5, 40, 200},   {5500, 10, 3},   {3, 1, 70},
                                 {5, 2, 100},     {5, 8, 100}};
  for (const auto& shape : shapes) expect_product(shape[0], shape[1], shape[2]);
}

}  // namespace
}  // namespace casync::test
