#include "each_isa.hpp"

namespace casync::test {
namespace {

TEST(Append, KeepsWhatTheMaskChoosesInOrder) {
  const std::int64_t n = 65536 * 16;  // every mask once
  const std::vector<float> values = values_of(Kind::random, n);
  std::vector<std::uint16_t> masks(65536);
  for (std::size_t i = 0; i < masks.size(); ++i) masks[i] = static_cast<std::uint16_t>(i);
  std::vector<float> expected;
  std::vector<std::int32_t> expected_index;
  for (std::int64_t i = 0; i < n; ++i) {
    if ((masks[static_cast<std::size_t>(i / 16)] >> (i % 16) & 1) == 0) continue;
    expected.push_back(values[static_cast<std::size_t>(i)]);
    expected_index.push_back(static_cast<std::int32_t>(i));
  }
  with_each_isa([&](const codec::Operators& operators) {
    std::vector<float> found(expected.size() + 16);
    std::vector<std::int32_t> index(expected.size() + 16);
    const std::int64_t count = operators.append(values.data(), masks.data(), n, found.data(), index.data());
    ASSERT_EQ(count, static_cast<std::int64_t>(expected.size()));
    found.resize(expected.size());
    index.resize(expected.size());
    EXPECT_TRUE(same_bits(found, expected));
    EXPECT_EQ(index, expected_index);
  });
}

TEST(Append, WritesNothingForAnEmptyMaskAndAtMostSixteenPlaces) {
  constexpr std::uint16_t kMasks[]{0x0000, 0x8000, 0x0101, 0xffff};
  const std::vector<float> values(16, 1.0F);
  with_each_isa([&](const codec::Operators& operators) {
    for (const std::uint16_t mask : kMasks) {
      std::vector<float> found(17, 7.0F);
      std::vector<std::int32_t> index(17, 7);
      operators.append(values.data(), &mask, 16, found.data(), index.data());
      EXPECT_EQ(found[16], 7.0F);
      EXPECT_EQ(index[16], 7);
      EXPECT_EQ(found[0], mask == 0 ? 7.0F : 1.0F);
    }
  });
}

}  // namespace
}  // namespace casync::test
