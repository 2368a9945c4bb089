// What is kept of many things, and by which number they are found.
#include "common/least_used.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/numbered.hpp"

namespace casync {
namespace {

bool any(std::uint32_t /*number*/) { return true; }

TEST(LeastUsed, WhatWasNotUsedForLongestGoes) {
  LeastUsed kept({.first = 2, .most = 2});
  const auto first = kept.add(1, 10);
  kept.add(2, 20);
  EXPECT_EQ(kept.evict(any), std::nullopt);
  kept.use(first);
  kept.add(3, 30);
  EXPECT_EQ(kept.evict(any), 2U);
  EXPECT_EQ(kept.evict(any), std::nullopt);
  EXPECT_EQ(kept.size(), 2U);
}

TEST(LeastUsed, WhatMayNotGoStaysBeyondTheLimit) {
  LeastUsed kept({.first = 1, .most = 1});
  for (std::uint32_t number = 1; number <= 3; ++number) kept.add(number, number);
  EXPECT_EQ(kept.evict([](std::uint32_t number) { return number != 1; }), 2U);
  EXPECT_EQ(kept.evict([](std::uint32_t number) { return number != 1; }), 3U);
  EXPECT_EQ(kept.evict([](std::uint32_t number) { return number != 1; }), std::nullopt);
}

/// A model of 30 gradients, each under its name in each step, where 10 have room.
TEST(LeastUsed, NamesThatComeBackMakeRoomForThemselves) {
  LeastUsed kept({.first = 10, .most = 100});
  std::vector<LeastUsed::Place> places(30);
  std::vector<bool> there(30, false);
  std::vector<int> added;
  for (int step = 0; step < 4; ++step) {
    added.push_back(0);
    for (std::uint32_t name = 0; name < 30; ++name) {
      if (there[name]) {
        kept.use(places[name]);
        continue;
      }
      places[name] = kept.add(name, name);
      there[name] = true;
      ++added.back();
      while (const auto gone = kept.evict(any)) there[*gone] = false;
    }
  }
  EXPECT_EQ(added, (std::vector<int>{30, 20, 0, 0}));  // the last 10 of a step are there in the next
}

TEST(LeastUsed, ShapesThatComeBackMakeNone) {
  LeastUsed kept({.first = 10, .most = 100});
  for (std::uint32_t number = 0; number < 1000; ++number) {
    kept.add(number % 30, 7);
    kept.evict(any);
  }
  EXPECT_EQ(kept.limit(), 10U);
}

TEST(LeastUsed, NeitherDoNamesThatNeverComeBack) {
  LeastUsed kept({.first = 10, .most = 100});
  for (std::uint32_t number = 0; number < 1000; ++number) {
    kept.add(number, number);
    kept.evict(any);
  }
  EXPECT_EQ(kept.limit(), 10U);
}

TEST(LeastUsed, ThereIsALimitToThat) {
  LeastUsed kept({.first = 10, .most = 12});
  for (std::uint32_t number = 0; number < 1000; ++number) {
    kept.add(number, number % 20);
    while (kept.evict(any)) {
    }
  }
  EXPECT_EQ(kept.limit(), 12U);
}

TEST(Numbered, AreFoundUntilTheyAreErased) {
  Numbered<std::string> all;
  for (std::uint32_t i = 0; i < 200; ++i) EXPECT_EQ(all.add(std::to_string(i)), i);
  const std::string* const there = all.find(70);
  for (std::uint32_t i = 0; i < 200; ++i) {
    if (i != 70 && i != 199) all.erase(i);
  }
  EXPECT_EQ(all.find(70), there);
  EXPECT_EQ(all.find(3), nullptr);
  EXPECT_EQ(all.find(71), nullptr);
  EXPECT_EQ(all.find(200), nullptr);
  EXPECT_EQ(all.add("more"), 200U);
  std::vector<std::uint32_t> left;
  all.for_each([&](std::uint32_t number, const std::string& /*text*/) { left.push_back(number); });
  EXPECT_EQ(left, (std::vector<std::uint32_t>{70, 199, 200}));
}

}  // namespace
}  // namespace casync
