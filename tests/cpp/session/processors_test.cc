#include "session/processors.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

TEST(Processors, ARankThatMayUseAllSharesThem) {
  EXPECT_EQ(processors_of(8, 8, 5), (Processors{.machine = 5, .usable = 8}));
}

TEST(Processors, ARankThatIsBoundHasItsOwn) {
  EXPECT_EQ(processors_of(2, 8, 5), (Processors{.machine = 0, .usable = 2}));
}

TEST(Processors, ThereIsAlwaysOne) {
  EXPECT_EQ(processors_of(0, 0, 5), (Processors{.machine = 5, .usable = 1})) << "nobody knows";
}

}  // namespace
}  // namespace casync
