#include <cmath>
#include <limits>

#include "each_isa.hpp"

namespace casync::test {
namespace {

std::vector<float> numbers() {
  std::vector<float> out{0.0F,
                         -0.0F,
                         0.5F,
                         -0.5F,
                         1.5F,
                         2.5F,
                         -2.5F,
                         0.49999997F,
                         8388607.5F,
                         -8388607.5F,
                         8388608.0F,
                         -3e9F,
                         1e-42F,
                         -1e-42F,
                         std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity()};
  Seeded random(5);
  while (out.size() % 16 != 0 || out.size() < 100000) {
    const auto bits = static_cast<std::uint32_t>(random.next());
    float value = 0;
    std::memcpy(&value, &bits, 4);
    if (out.size() % 2 == 0) value = static_cast<float>(random.normal() * 20);
    if (!std::isnan(value)) out.push_back(value);
  }
  return out;
}

void expect(codec::Operators::OfFloats codec::Operators::* function, float (*reference)(float)) {
  const std::vector<float> x = numbers();
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> expected(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) expected[i] = reference(x[i]);
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found(x.size());
    for (const auto over : {(operators.*function).sixteen, (operators.*function).one}) {
      over(x.data(), n, found.data());
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(expected[i]))
          ASSERT_TRUE(std::isnan(found[i])) << x[i];
        else
          ASSERT_TRUE(same_bits({found[i]}, {expected[i]})) << x[i] << " gives " << found[i];
      }
    }
  });
}

TEST(Rounding, IsThatOfTheCLibrary) {
  expect(&codec::Operators::round_nearest, [](float x) { return std::nearbyint(x); });
  expect(&codec::Operators::round_down, [](float x) { return std::floor(x); });
  expect(&codec::Operators::round_up, [](float x) { return std::ceil(x); });
  expect(&codec::Operators::square_root, [](float x) { return static_cast<float>(std::sqrt(static_cast<double>(x))); });
}

}  // namespace
}  // namespace casync::test
