#include "casync/staggered.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace casync {
namespace {

std::uintptr_t quarter_of(const FloatArray& array) {
  return reinterpret_cast<std::uintptr_t>(array.data()) % 4096 / 1024;
}

TEST(Staggered, LongArraysBeginInQuartersOfTheirOwnBehindTheFirst) {
  const std::vector<FloatArray> arrays(3, FloatArray(1 << 20, 1.0F));
  std::set<std::uintptr_t> quarters;
  for (const FloatArray& array : arrays) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % 64, 0U);
    quarters.insert(quarter_of(array));
  }
  EXPECT_EQ(quarters, (std::set<std::uintptr_t>{1, 2, 3}));
}

TEST(Staggered, ArraysGrowFromShortToLongWithWhatTheyHold) {
  FloatArray array;
  for (int i = 0; i < 100'000; ++i) array.push_back(static_cast<float>(i));
  const FloatArray copy = array;
  array.resize(10);
  array.shrink_to_fit();
  for (std::size_t i = 0; i < copy.size(); ++i) ASSERT_EQ(copy[i], static_cast<float>(i));
  EXPECT_EQ(array, FloatArray(copy.begin(), copy.begin() + 10));
}

}  // namespace
}  // namespace casync
