// The link's speed is that of all bodies together, whatever the number of them.
#include "executor/link_meter.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

constexpr std::size_t kBody = 256 << 10;

TEST(LinkMeter, BodiesThatShareTheLinkCountTogether) {
  LinkMeter meter;
  meter.begin(100);
  meter.begin(150);
  EXPECT_FALSE(meter.end(kBody, 900));
  const auto period = meter.end(kBody, 1100);
  ASSERT_TRUE(period.has_value());
  EXPECT_EQ(period->bytes, 2 * kBody);
  EXPECT_EQ(period->time, 1000);
}

TEST(LinkMeter, IdleTimeIsNotCounted) {
  LinkMeter meter;
  meter.begin(0);
  EXPECT_EQ(meter.end(kBody, 500)->time, 500);
  meter.begin(1'000'000);
  EXPECT_EQ(meter.end(kBody, 1'000'700)->time, 700);
}

TEST(LinkMeter, ALongPeriodIsCutAndAShortOneForgotten) {
  LinkMeter meter;
  meter.begin(0);
  meter.begin(0);
  EXPECT_EQ(meter.end(LinkMeter::kEnough, 1000)->time, 1000);
  EXPECT_EQ(meter.end(kBody, 1300)->time, 300);
  meter.begin(2000);
  EXPECT_FALSE(meter.end(LinkMeter::kLeast - 1, 2100));
}

}  // namespace
}  // namespace casync
