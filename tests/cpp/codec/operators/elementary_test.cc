#include <cmath>
#include <limits>

#include "each_isa.hpp"

namespace casync::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
/// Every how-manieth float is looked at. All of them (1) take minutes; the bounds below held for them.
constexpr std::uint64_t kStride = 997;

float of_pattern(std::uint64_t bits) {
  const auto narrow = static_cast<std::uint32_t>(bits);
  float value = 0;
  std::memcpy(&value, &narrow, 4);
  return value;
}

/// In units of the last place of a float32 near `exact`.
double ulps(float found, double exact) {
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(found) - exact) / std::ldexp(1.0, exponent - 23);
}

/// Calls check(x, f(x)) for floats of all sizes, after having seen to it that f gives the same bits at every
/// instruction set and for single values.
template <typename Check>
void for_all(codec::Operators::OfFloats codec::Operators::* function, const Check& check) {
  constexpr std::uint64_t kAtOnce = 1 << 16;
  std::vector<float> x(kAtOnce);
  std::vector<float> first(kAtOnce);
  std::vector<float> found(kAtOnce);
  for (std::uint64_t from = 0; from < 1ULL << 32; from += kAtOnce * kStride) {
    for (std::uint64_t i = 0; i < kAtOnce; ++i) x[i] = of_pattern(from + i * kStride);
    (codec::baseline::kOperators.*function).one(x.data(), kAtOnce, first.data());
    with_each_isa([&](const codec::Operators& operators) {
      (operators.*function).sixteen(x.data(), kAtOnce, found.data());
      ASSERT_TRUE(same_bits(found, first));
      (operators.*function).one(x.data(), kAtOnce, found.data());
      ASSERT_TRUE(same_bits(found, first));
    });
    for (std::size_t i = 0; i < kAtOnce; ++i) check(x[i], first[i]);
  }
}

float one(codec::Operators::OfFloats codec::Operators::* function, float x) {
  float out = 0;
  (codec::baseline::kOperators.*function).one(&x, 1, &out);
  return out;
}

TEST(Elementary, Exp2IsWithinElevenTenthsOfAnUlp) {
  double worst = 0;
  for_all(&codec::Operators::exp2, [&](float x, float found) {
    const double exact = std::exp2(static_cast<double>(x));
    if (std::isnan(x))
      EXPECT_TRUE(std::isnan(found));
    else if (static_cast<float>(exact) == kInfinity)
      EXPECT_EQ(found, kInfinity) << x;
    else
      worst = std::max(worst, ulps(found, exact));
  });
  EXPECT_LT(worst, 1.1);
}

TEST(Elementary, Exp2IsExactForWholeNumbers) {
  for (int n = -200; n <= 200; ++n)
    EXPECT_EQ(one(&codec::Operators::exp2, static_cast<float>(n)), std::ldexp(1.0F, n)) << n;
  EXPECT_EQ(one(&codec::Operators::exp2, -0.0F), 1.0F);
  EXPECT_EQ(one(&codec::Operators::exp2, kInfinity), kInfinity);
  EXPECT_EQ(one(&codec::Operators::exp2, -kInfinity), 0.0F);
}

TEST(Elementary, Log2IsWithinTwoUlps) {
  double worst = 0;
  for_all(&codec::Operators::log2, [&](float x, float found) {
    if (std::isnan(x) || x < 0)
      EXPECT_TRUE(std::isnan(found)) << x;
    else if (x > 0 && x < kInfinity)
      worst = std::max(worst, ulps(found, std::log2(static_cast<double>(x))));
  });
  EXPECT_LT(worst, 2);
}

TEST(Elementary, Log2IsExactForPowersOfTwo) {
  for (int n = -149; n <= 127; ++n)
    EXPECT_EQ(one(&codec::Operators::log2, std::ldexp(1.0F, n)), static_cast<float>(n)) << n;
  EXPECT_EQ(one(&codec::Operators::log2, 0.0F), -kInfinity);
  EXPECT_EQ(one(&codec::Operators::log2, -0.0F), -kInfinity);
  EXPECT_EQ(one(&codec::Operators::log2, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(one(&codec::Operators::log2, -kInfinity)));
}

TEST(Elementary, CosineIsWithinAnUlpOfOneAndNaNFarOut) {
  double worst = 0;
  double worst_ulps = 0;
  for_all(&codec::Operators::cosine, [&](float x, float found) {
    const double exact = std::cos(static_cast<double>(x));
    if (!(std::fabs(x) <= 100000.0F))
      EXPECT_TRUE(std::isnan(found)) << x;
    else
      worst = std::max(worst, std::fabs(static_cast<double>(found) - exact));
    if (std::fabs(x) <= 100.0F) worst_ulps = std::max(worst_ulps, ulps(found, exact));
  });
  EXPECT_LT(worst, 0x1p-23);
  EXPECT_LT(worst_ulps, 2.5);
  EXPECT_EQ(one(&codec::Operators::cosine, 0.0F), 1.0F);
  EXPECT_TRUE(std::isnan(one(&codec::Operators::cosine, kInfinity)));
  EXPECT_TRUE(std::isnan(one(&codec::Operators::cosine, kNan)));
}

}  // namespace
}  // namespace casync::test
