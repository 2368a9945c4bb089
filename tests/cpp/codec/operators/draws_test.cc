#include "../reference.hpp"
#include "each_isa.hpp"

namespace casync::test {
namespace {

TEST(Draws, AreThoseOfTheCoordinate) {
  const codec::RandomKey key{.name_hash = 0x0123456789abcdefULL, .sequence = 77, .round = 3, .stream = 0x10002};
  for (const std::int64_t from : {std::int64_t{0}, std::int64_t{4096}, (std::int64_t{1} << 35) - 1024}) {
    with_each_isa([&](const codec::Operators& operators) {
      for (std::int64_t i = from; i < from + 2048; i += 16) {
        std::int32_t sixteen[16];
        operators.draw_sixteen(key, static_cast<std::uint64_t>(i), sixteen);
        for (int lane = 0; lane < 16; ++lane) {
          const auto expected =
              static_cast<std::int32_t>(reference::draw(key.name_hash, key.sequence, key.round, key.stream, i + lane));
          ASSERT_EQ(sixteen[lane], expected) << i + lane;
          ASSERT_EQ(operators.draw_one(key, static_cast<std::uint64_t>(i + lane)), expected) << i + lane;
        }
      }
    });
  }
}

}  // namespace
}  // namespace casync::test
