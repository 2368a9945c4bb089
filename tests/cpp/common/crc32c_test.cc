#include "common/crc32c.hpp"

#include <gtest/gtest.h>

#include <string_view>

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

TEST(Crc32c, SeesOneFlippedBit) { EXPECT_NE(crc_of("123456789"), crc_of("123456788")); }

}  // namespace
}  // namespace casync
