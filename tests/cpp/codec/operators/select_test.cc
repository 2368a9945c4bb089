#include <algorithm>
#include <cmath>

#include "each_isa.hpp"

namespace casync::test {
namespace {

bool comes_before(float a, float b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

std::vector<std::int64_t> positions(std::int64_t n) { return {-3, 0, 1, n / 100, n / 3, n - 2, n - 1, n, n + 7}; }

TEST(Select, GivesTheElementThatASortPutsThere) {
  for (const Kind kind : kKinds) {
    for (const std::int64_t n : kLengths) {
      if (n == 0) continue;
      const std::vector<float> values = values_of(kind, n);
      std::vector<float> ascending = values;
      std::sort(ascending.begin(), ascending.end(), comes_before);
      with_each_isa([&](const codec::Operators& operators) {
        for (const std::int64_t k : positions(n)) {
          const auto held = static_cast<std::size_t>(std::clamp<std::int64_t>(k, 0, n - 1));
          const float small = ascending[held];
          const float large = ascending[ascending.size() - 1 - held];
          ASSERT_TRUE(same_bits({operators.nth_smallest(values.data(), n, k)}, {small})) << k << " of " << n;
          ASSERT_TRUE(same_bits({operators.nth_largest(values.data(), n, k)}, {large})) << k << " of " << n;
        }
      });
    }
  }
}

TEST(Select, OrdersIntegersWithTheirSigns) {
  for (const std::int64_t n : {std::int64_t{3}, std::int64_t{16}, std::int64_t{1025}, std::int64_t{50000}}) {
    Seeded random(static_cast<std::uint64_t>(n));
    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
    for (auto& value : values) value = static_cast<std::int32_t>(random.next());
    values[0] = INT32_MIN;
    values[1] = INT32_MAX;
    std::vector<std::int32_t> ascending = values;
    std::sort(ascending.begin(), ascending.end());
    with_each_isa([&](const codec::Operators& operators) {
      for (const std::int64_t k : positions(n)) {
        const auto held = static_cast<std::size_t>(std::clamp<std::int64_t>(k, 0, n - 1));
        ASSERT_EQ(operators.nth_smallest_integer(values.data(), n, k), ascending[held]);
        ASSERT_EQ(operators.nth_largest_integer(values.data(), n, k), ascending[ascending.size() - 1 - held]);
      }
    });
  }
}

TEST(Select, GivesZeroForNothing) {
  with_each_isa([](const codec::Operators& operators) {
    EXPECT_EQ(operators.nth_largest(nullptr, 0, 0), 0.0F);
    EXPECT_EQ(operators.nth_smallest(nullptr, 0, 5), 0.0F);
  });
}

}  // namespace
}  // namespace casync::test
