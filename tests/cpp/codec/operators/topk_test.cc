#include <algorithm>
#include <cmath>
#include <numeric>

#include "each_isa.hpp"

namespace casync::test {
namespace {

/// All indices, those of larger magnitudes first, ties by index.
template <typename T>
std::vector<std::int32_t> by_magnitude(const std::vector<T>& values) {
  std::vector<std::int32_t> index(values.size());
  std::iota(index.begin(), index.end(), 0);
  const auto magnitude = [&](std::int32_t i) {
    return std::fabs(static_cast<double>(values[static_cast<std::size_t>(i)]));
  };
  std::stable_sort(index.begin(), index.end(),
                   [&](std::int32_t a, std::int32_t b) { return magnitude(a) > magnitude(b); });
  return index;
}

/// The first k, in order of index.
std::vector<std::int32_t> head(const std::vector<std::int32_t>& sorted, std::int64_t k) {
  const auto n = static_cast<std::int64_t>(sorted.size());
  std::vector<std::int32_t> index(sorted.begin(), sorted.begin() + std::clamp<std::int64_t>(k, 0, n));
  std::sort(index.begin(), index.end());
  return index;
}

template <typename T, typename Topk>
void expect_largest(const Topk& topk, const std::vector<T>& values, std::int64_t k,
                    const std::vector<std::int32_t>& expected) {
  std::vector<std::int32_t> index(expected.size() + 16);
  std::vector<T> value(expected.size() + 16);
  std::vector<std::int32_t> index_scratch(values.size() + 16);
  std::vector<T> value_scratch(values.size() + 16);
  const auto n = static_cast<std::int64_t>(values.size());
  const std::int64_t count =
      topk(values.data(), n, k, index.data(), value.data(), index_scratch.data(), value_scratch.data());
  ASSERT_EQ(count, static_cast<std::int64_t>(expected.size())) << k << " of " << n;
  index.resize(expected.size());
  ASSERT_EQ(index, expected) << k << " of " << n;
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_EQ(std::memcmp(&value[i], &values[static_cast<std::size_t>(expected[i])], sizeof(T)), 0);
}

TEST(TopK, IsTheHeadOfAStableSortInOrderOfIndex) {
  for (const Kind kind : kKinds) {
    for (const std::int64_t n : kLengths) {
      const std::vector<float> values = values_of(kind, n);
      const std::vector<std::int32_t> sorted = by_magnitude(values);
      for (const std::int64_t k : {std::int64_t{-1}, std::int64_t{1}, n / 1000, n / 100, n / 3, n - 1, n, n + 1}) {
        const std::vector<std::int32_t> expected = head(sorted, k);
        with_each_isa([&](const codec::Operators& operators) { expect_largest(operators.topk, values, k, expected); });
      }
    }
  }
}

TEST(TopK, IsExactWhereASampleMisleads) {
  const std::int64_t n = 200000;
  std::vector<float> ends(static_cast<std::size_t>(n), 1.0F);  // all that is large lies in one place
  for (std::size_t i = 0; i < 3000; ++i) ends[i] = 2.0F + static_cast<float>(i % 7);
  std::vector<float> few(static_cast<std::size_t>(n));  // and where fewer than k are not zero
  for (std::size_t i = 0; i < few.size(); i += 997) few[i] = -1.0F / static_cast<float>(i + 1);
  std::vector<float> sampled(static_cast<std::size_t>(n), 1.0F);
  for (std::size_t i = 0; i < sampled.size(); ++i)
    if (i % 781 < 700) sampled[i] = static_cast<float>(i % 100 + 2);
  for (const auto& values : {ends, few, sampled}) {
    const std::vector<std::int32_t> sorted = by_magnitude(values);
    for (const std::int64_t k : {20, 200, 2000, 3001, 20000}) {
      const std::vector<std::int32_t> expected = head(sorted, k);
      with_each_isa([&](const codec::Operators& operators) { expect_largest(operators.topk, values, k, expected); });
    }
  }
}

TEST(TopK, IsExactForAFewOfAShortArray) {
  for (const std::int64_t n : {1023, 1024, 1151, 1152, 4096, 5000, 32767, 32768}) {
    std::vector<std::vector<float>> arrays;
    for (const Kind kind : kKinds) arrays.push_back(values_of(kind, n));
    std::vector<float> one_part(static_cast<std::size_t>(n), 1.0F);  // all that is large lies in one of the parts
    for (std::size_t i = 5; i < one_part.size(); i += 128) one_part[i] = -2.0F - static_cast<float>(i % 7);
    std::vector<float> end(static_cast<std::size_t>(n), 0.5F);  // or where parts are not whole any more
    for (std::size_t i = end.size() - 20; i < end.size(); ++i) end[i] = 1.0F + static_cast<float>(i % 3);
    arrays.push_back(one_part);
    arrays.push_back(end);
    for (const std::vector<float>& values : arrays) {
      const std::vector<std::int32_t> sorted = by_magnitude(values);
      for (const std::int64_t k : {1, 2, 8, 63, 64, 65, 111, 112, 113, 256}) {
        const std::vector<std::int32_t> expected = head(sorted, k);
        with_each_isa([&](const codec::Operators& operators) { expect_largest(operators.topk, values, k, expected); });
      }
    }
  }
}

TEST(TopK, TakesIntegersByTheirMagnitudes) {
  for (const std::int64_t n : {std::int64_t{5}, std::int64_t{1025}, std::int64_t{20000}, std::int64_t{100000}}) {
    Seeded random(static_cast<std::uint64_t>(n));
    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
    for (auto& value : values) value = static_cast<std::int32_t>(random.next()) >> (random.next() % 32);
    values[3] = INT32_MIN;
    values[1] = INT32_MAX;
    values[4] = -INT32_MAX;
    const std::vector<std::int32_t> sorted = by_magnitude(values);
    for (const std::int64_t k : {std::int64_t{1}, std::int64_t{2}, n / 200, n / 10, n / 2}) {
      const std::vector<std::int32_t> expected = head(sorted, k);
      with_each_isa(
          [&](const codec::Operators& operators) { expect_largest(operators.topk_integers, values, k, expected); });
    }
  }
}

}  // namespace
}  // namespace casync::test
