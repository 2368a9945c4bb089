#include <cmath>

#include "each_isa.hpp"

namespace casync::test {
namespace {

TEST(Hadamard, IsTheSumOverSignsDividedByTheRoot) {
  for (const std::int64_t n : {0, 1, 2, 3, 5, 8, 15, 16, 17, 100, 1000, 1024}) {
    std::size_t size = 1;
    while (static_cast<std::int64_t>(size) < n) size *= 2;
    const std::vector<float> values = values_of(Kind::random, n);
    with_each_isa([&](const codec::Operators& operators) {
      std::vector<float> found(size, 7.0F);
      operators.hadamard(values.data(), n, found.data());
      for (std::size_t i = 0; i < size; ++i) {
        double exact = 0;
        double magnitudes = 0;
        for (std::size_t j = 0; j < values.size(); ++j) {
          const double value = static_cast<double>(values[j]);
          exact += __builtin_parityll(i & j) != 0 ? -value : value;
          magnitudes += std::fabs(value);
        }
        const double root = std::sqrt(static_cast<double>(size));
        ASSERT_NEAR(found[i], exact / root, 1e-6 * magnitudes / root);
      }
    });
  }
}

/// Stage after stage over the whole array.
std::vector<float> by_stages(std::vector<float> x) {
  for (std::size_t h = 1; h < x.size(); h *= 2) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i];
      const float b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
  }
  for (float& value : x) value /= std::sqrt(static_cast<float>(x.size()));
  return x;
}

TEST(Hadamard, GivesTheBitsOfOneStageAfterTheOther) {
  for (const std::int64_t n : {0, 1, 2, 15, 16, 17, 32, 64, 65, 128, 200, 256, 500, 1000, 2048, 4096, 4099, 1 << 20}) {
    std::vector<float> values = values_of(Kind::random, n);
    std::size_t size = 1;
    while (size < values.size()) size *= 2;
    values.resize(size);
    const std::vector<float> expected = by_stages(values);
    with_each_isa([&](const codec::Operators& operators) {
      std::vector<float> found = values;
      operators.hadamard(found.data(), n, found.data());
      EXPECT_TRUE(same_bits(found, expected)) << n;
    });
  }
}

}  // namespace
}  // namespace casync::test
