#include <algorithm>
#include <cmath>
#include <limits>

#include "each_isa.hpp"

namespace casync::test {
namespace {

using Indices = std::vector<std::int32_t>;

Indices random_indices(std::int64_t count, std::int64_t n) {
  Seeded random(static_cast<std::uint64_t>(count + n));
  Indices out(static_cast<std::size_t>(count));
  for (auto& index : out) index = static_cast<std::int32_t>(random.next() % static_cast<std::uint64_t>(n));
  return out;
}

TEST(Scattered, GatherHoldsIndicesToTheArray) {
  const std::vector<float> values{10, 11, 12, 13, 14};
  const Indices index{4, 0, -1, 5, INT32_MAX, INT32_MIN, 2};
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found(index.size(), 7.0F);
    operators.gather(values.data(), 5, index.data(), 7, found.data());
    EXPECT_EQ(found, (std::vector<float>{14, 10, 10, 14, 14, 10, 12}));
    operators.gather(nullptr, 0, index.data(), 7, found.data());
    EXPECT_EQ(found, std::vector<float>(7));

    const Indices chunks{2, -3, 9, 1};  // of two elements: 10 11, 12 13, 14 0
    std::vector<float> moved(8, 7.0F);
    operators.gather_chunks(values.data(), 5, 2, chunks.data(), 4, moved.data());
    EXPECT_EQ(moved, (std::vector<float>{14, 0, 10, 11, 14, 0, 12, 13}));
    operators.gather_chunks(nullptr, 0, 2, chunks.data(), 4, moved.data());
    EXPECT_EQ(moved, std::vector<float>(8));
  });
}

TEST(Scattered, AddsInOrderAndStoresAmongZeros) {
  for (const std::int64_t count : {0, 1, 15, 16, 17, 1000, 100000}) {
    const std::int64_t n = 4099;
    const Indices index = random_indices(count, n);
    const std::vector<float> values = values_of(Kind::random, count);
    const std::vector<float> before = values_of(Kind::ties, n);
    std::vector<float> sum = before;
    std::vector<float> stored(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < index.size(); ++i) {
      sum[static_cast<std::size_t>(index[i])] += values[i];
      stored[static_cast<std::size_t>(index[i])] = values[i];
    }
    with_each_isa([&](const codec::Operators& operators) {
      std::vector<float> found = before;
      ASSERT_TRUE(operators.add_scattered(index.data(), values.data(), count, found.data(), n));
      EXPECT_TRUE(same_bits(found, sum));
      ASSERT_TRUE(operators.scatter(index.data(), values.data(), count, found.data(), n));
      EXPECT_TRUE(same_bits(found, stored));
    });
  }
}

TEST(Scattered, StoresWholeChunksAndOfTheLastOneWhatFits) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const Indices index{2, 0};
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found(8, 7.0F);
    ASSERT_TRUE(operators.scatter_chunks(index.data(), values.data(), 3, 2, found.data(), 8));
    EXPECT_EQ(found, (std::vector<float>{4, 5, 6, 0, 0, 0, 1, 2}));
    const Indices outside{0, 3};
    EXPECT_FALSE(operators.scatter_chunks(outside.data(), values.data(), 3, 2, found.data(), 8));
  });
}

TEST(Scattered, ChangesNothingIfAnIndexOfAPayloadLiesOutside) {
  const std::int64_t n = 50;
  const std::vector<float> before = values_of(Kind::random, n);
  for (const std::int64_t count : {1, 16, 17, 40}) {
    for (std::int64_t place = 0; place < count; ++place) {
      for (const std::int32_t hostile : {-1, 50, 51, INT32_MAX, INT32_MIN}) {
        Indices index = random_indices(count, n);
        index[static_cast<std::size_t>(place)] = hostile;
        const std::vector<float> values(index.size(), 1.0F);
        with_each_isa([&](const codec::Operators& operators) {
          std::vector<float> found = before;
          EXPECT_FALSE(operators.add_scattered(index.data(), values.data(), count, found.data(), n));
          EXPECT_FALSE(operators.scatter(index.data(), values.data(), count, found.data(), n));
          EXPECT_TRUE(same_bits(found, before));
        });
      }
    }
  }
}

TEST(Scattered, ANaNGoesEverywhere) {
  const Indices index{3, 1};
  const std::vector<float> values{1, std::numeric_limits<float>::quiet_NaN()};
  const auto is_nan = [](float value) { return std::isnan(value); };
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found(5, 1.0F);
    ASSERT_TRUE(operators.scatter(index.data(), values.data(), 2, found.data(), 5));
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), is_nan));
    found.assign(5, 1.0F);
    ASSERT_TRUE(operators.add_scattered(index.data(), values.data(), 2, found.data(), 5));
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), is_nan));
    found.assign(5, 1.0F);
    ASSERT_TRUE(operators.scatter_chunks(index.data(), values.data(), 1, 2, found.data(), 5));
    EXPECT_TRUE(std::all_of(found.begin(), found.end(), is_nan));
  });
}

}  // namespace
}  // namespace casync::test
