#include "common/wire.hpp"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace casync {
namespace {

TEST(Wire, ABoolIsZeroOrOne) {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).put(true);
  ByteWriter(bytes).put(false);
  ByteWriter(bytes).put(std::uint8_t{128});
  ByteReader reader(bytes);
  EXPECT_TRUE(reader.get<bool>());
  EXPECT_FALSE(reader.get<bool>());
  EXPECT_THROW(reader.get<bool>(), CorruptPayload);
}

TEST(Wire, ShortBytesAreRefused) {
  std::vector<std::byte> bytes;
  ByteWriter(bytes).put_text("text");
  ByteReader reader(std::span<const std::byte>(bytes).first(bytes.size() - 1));
  EXPECT_THROW(reader.get_text(), CorruptPayload);
}

}  // namespace
}  // namespace casync
