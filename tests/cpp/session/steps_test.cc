// What a step is: from a tensor's reduction to its next one.
#include "session/steps.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

Metrics read(const Steps& steps) {
  Metrics metrics;
  steps.read(metrics);
  return metrics;
}

TEST(Steps, BeginWhereATensorComesAgain) {
  Steps steps;
  EXPECT_EQ(read(steps).steps, 0U);
  steps.submitted(1, 1'000'000, 0);  // the first gradient
  steps.submitted(1, 1'500'000, 0);  // the second
  EXPECT_EQ(read(steps).steps, 1U);
  EXPECT_EQ(read(steps).step_time.sum, 0);
  steps.submitted(2, 5'000'000, 700'000);  // the first again, after 0.7 ms of waiting
  steps.submitted(2, 5'100'000, 700'000);
  const Metrics metrics = read(steps);
  EXPECT_EQ(metrics.steps, 2U);
  EXPECT_EQ(metrics.step_time.sum, 4'000'000);
  EXPECT_EQ(metrics.exposed_time.sum, 700'000);
  EXPECT_EQ(metrics.step_time.counts[12], 1U);  // up to 4096 us
}

TEST(Steps, ATensorThatComesLaterBeginsNone) {
  Steps steps;
  for (std::uint64_t step = 1; step <= 3; ++step) steps.submitted(step, static_cast<Nanoseconds>(step), 0);
  steps.submitted(1, 10, 0);
  steps.submitted(2, 11, 0);
  EXPECT_EQ(read(steps).steps, 3U);
}

}  // namespace
}  // namespace casync
