// A text that is too long for other ranks is cut where a character begins.
#include "common/shortened.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

TEST(Shortened, LeavesWhatIsShort) {
  EXPECT_EQ(shortened(""), "");
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened(std::string(kTextBytes, 'x')), std::string(kTextBytes, 'x'));
}

TEST(Shortened, SaysHowMuchIsMissing) {
  EXPECT_EQ(shortened("abcdef", 4), "abcd ... (2 more bytes)");
  EXPECT_LT(shortened(std::string(10'000'000, 'x')).size(), kTextBytes + 40);
}

TEST(Shortened, CutsNoCharacter) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // of 1, 2, 3, 4 and 1 bytes
  EXPECT_EQ(shortened(text, 2), "a ... (10 more bytes)");
  EXPECT_EQ(shortened(text, 3), "a\xc3\xa9 ... (8 more bytes)");
  EXPECT_EQ(shortened(text, 5), "a\xc3\xa9 ... (8 more bytes)");
  EXPECT_EQ(shortened(text, 9), "a\xc3\xa9\xe2\x82\xac ... (5 more bytes)");
  EXPECT_EQ(shortened("\x80\x80\x80\x80", 2), " ... (4 more bytes)");  // no UTF-8 at all
}

}  // namespace
}  // namespace casync
