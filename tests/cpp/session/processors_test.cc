#include "session/processors.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

TEST(Processors, RanksThatMayUseAllShareThem) {
  EXPECT_FALSE(has_one_core(8, 8, 4));
  EXPECT_TRUE(has_one_core(8, 8, 5));
  EXPECT_FALSE(has_one_core(2, 2, 1));
  EXPECT_TRUE(has_one_core(2, 2, 2));
}

TEST(Processors, ARankThatIsBoundHasItsOwn) {
  EXPECT_TRUE(has_one_core(1, 8, 8));
  EXPECT_FALSE(has_one_core(2, 8, 4));
  EXPECT_TRUE(has_one_core(1, 1, 1)) << "a host of one processor";
}

}  // namespace
}  // namespace casync
