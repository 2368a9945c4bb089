// Thousands of interleavings of whole jobs in virtual time, on real bytes. One seed is one job.
//   CASYNC_SEED=123 test_schedules       replays one seed
//   CASYNC_SEEDS=5000:2500 test_schedules   runs 2500 seeds from 5000 on (the shards of ctest)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "executor/check.hpp"

namespace casync::test {
namespace {

struct Seeds {
  std::uint64_t first = 0;
  std::uint64_t count = 300;
};

Seeds seeds() {
  if (const char* one = std::getenv("CASYNC_SEED")) return {std::strtoull(one, nullptr, 10), 1};
  Seeds range;
  if (const char* given = std::getenv("CASYNC_SEEDS")) {
    char* colon = nullptr;
    range.first = std::strtoull(given, &colon, 10);
    if (*colon == ':') range.count = std::strtoull(colon + 1, nullptr, 10);
  }
  return range;
}

TEST(Schedules, HoldForEverySeed) {
  const Seeds range = seeds();
  if (range.first == 0) std::cout << Distributions{}.print();
  if (range.count == 1) std::cout << draw(range.first, {}).print() << '\n';
  const Verification all = verify_seeds(range.first, range.count);
  for (const std::string& failure : all.failures) ADD_FAILURE() << failure;
  std::cout << range.count << " schedules from seed " << range.first << ": " << all.operations
            << " operations ended well, " << all.errors << " with an error that the schedule allows, in " << all.turns
            << " turns\n";
}

/// In a step of it a tensor goes on another plan than before.
bool re_plans(const Schedule& schedule) {
  return std::ranges::any_of(schedule.script.tensors, [&](const VirtualTensor& tensor) {
    return tensor.then && tensor.plan.until < schedule.script.steps.size();
  });
}

TEST(Schedules, ARePlanUnderFaultsIsAmongThem) {
  int with_turns = 0;
  int with_threads = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Schedule schedule = draw(seed, {});
    if (schedule.script.faults.empty() || !re_plans(schedule)) continue;
    ++(schedule.options.threads ? with_threads : with_turns);
  }
  EXPECT_GE(with_turns, 5);
  EXPECT_GE(with_threads, 5);
}

}  // namespace
}  // namespace casync::test
