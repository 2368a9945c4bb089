#include "each_isa.hpp"

namespace casync::test {
namespace {

std::int64_t counted(const codec::Operators& operators, std::uint32_t count, std::size_t bytes, std::int64_t most,
                     int bits) {
  std::vector<std::byte> payload(bytes);
  if (bytes >= 4) std::memcpy(payload.data(), &count, 4);
  return operators.counted(payload.data(), payload.data() + bytes, most, bits);
}

TEST(Counted, IsTheCountOfAnArrayThatIsThere) {
  with_each_isa([](const codec::Operators& operators) {
    EXPECT_EQ(counted(operators, 5, 4 + 20, 5, 32), 5);
    EXPECT_EQ(counted(operators, 0, 4, 0, 32), 0);
    EXPECT_EQ(counted(operators, 9, 4 + 3, 100, 2), 9);  // 18 bits
  });
}

TEST(Counted, BelievesNothing) {
  with_each_isa([](const codec::Operators& operators) {
    EXPECT_EQ(counted(operators, 0, 0, 10, 32), -1);
    EXPECT_EQ(counted(operators, 0, 3, 10, 32), -1);
    EXPECT_EQ(counted(operators, 5, 4 + 19, 5, 32), -1);
    EXPECT_EQ(counted(operators, 6, 4 + 24, 5, 32), -1);
    EXPECT_EQ(counted(operators, 9, 4 + 2, 100, 2), -1);
    EXPECT_EQ(counted(operators, 0xffffffffU, 4 + 20, 1LL << 40, 64), -1);
  });
}

}  // namespace
}  // namespace casync::test
