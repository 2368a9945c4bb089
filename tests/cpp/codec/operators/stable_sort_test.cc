#include <algorithm>

#include "each_isa.hpp"

namespace casync::test {
namespace {

using Keyed = codec::Operators::Keyed;

TEST(StableSort, IsThatOfTheStandardLibrary) {
  for (const std::int64_t n : kLengths) {
    for (const std::uint64_t keys : {1, 3, 1000000000}) {
      Seeded random(static_cast<std::uint64_t>(n));
      std::vector<Keyed> data(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = {static_cast<std::int32_t>(random.next() % keys), static_cast<std::int32_t>(i)};
      std::vector<Keyed> expected = data;
      std::stable_sort(expected.begin(), expected.end(), [](const Keyed& a, const Keyed& b) { return a.key < b.key; });
      with_each_isa([&](const codec::Operators& operators) {
        std::vector<Keyed> found = data;
        std::vector<Keyed> spare(data.size());
        operators.stable_sort(found.data(), spare.data(), n);
        EXPECT_TRUE(std::equal(found.begin(), found.end(), expected.begin(), [](const Keyed& a, const Keyed& b) {
          return a.key == b.key && a.number == b.number;
        })) << n;
      });
    }
  }
}

}  // namespace
}  // namespace casync::test
