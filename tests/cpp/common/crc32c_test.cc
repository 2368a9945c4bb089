#include "common/crc32c.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace casync {
namespace {

std::uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

// Reference values: RFC 3720 appendix B.4 and the CRC catalogue's check value.
TEST(Crc32c, MatchesTheStandardsVectors) {
  EXPECT_EQ(crc_of("123456789"), 0xe3069283U);
  EXPECT_EQ(crc_of(std::string_view("\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32)),
            0x8a9136aaU);
  EXPECT_EQ(crc_of(""), 0U);
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  EXPECT_EQ(crc32c(bytes("6789"), crc32c(bytes("12345"))), 0xe3069283U);
}

TEST(Crc32c, SeesOneFlippedBit) { EXPECT_NE(crc_of("123456789"), crc_of("123456788")); }

/// Division by the polynomial, bit by bit, as RFC 3720 defines it.
std::uint32_t by_definition(std::span<const std::byte> bytes) {
  std::uint32_t crc = ~0U;
  for (const std::byte b : bytes) {
    crc ^= static_cast<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

TEST(Crc32c, IsTheDefinitionAtEveryLength) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(5000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (std::size_t length = 0; length <= bytes.size(); length += length < 40 ? 1 : 37) {
    const auto some = std::span(bytes).last(length);
    ASSERT_EQ(crc32c(some), by_definition(some)) << length << " bytes";
  }
}

}  // namespace
}  // namespace casync
