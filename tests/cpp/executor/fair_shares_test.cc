// Messages that share links, beside times that are computed by hand, and the conditions of max-min fairness.
#include "executor/virtual/fair_shares.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;

/// When each message is through, by its number.
std::map<std::uint64_t, Nanoseconds> ends_of(FairShares& shares) {
  std::map<std::uint64_t, Nanoseconds> found;
  for (Nanoseconds now = shares.next(); now != FairShares::kNever; now = shares.next()) {
    for (const std::uint64_t message : shares.through(now)) found[message] = now;
  }
  return found;
}

TEST(FairShares, AMessageAloneHasItsLinks) {
  FairShares shares({1e9, 5e8}, 0);
  EXPECT_EQ(shares.next(), FairShares::kNever);
  shares.start(7, 0, 1, 1'000'000, 5 * kMillisecond);
  EXPECT_EQ(ends_of(shares), (std::map<std::uint64_t, Nanoseconds>{{7, 7 * kMillisecond}})) << "the slower link's rate";
}

TEST(FairShares, BothWaysOfAnEndAreLinksOfTheirOwn) {
  FairShares shares({1e9, 1e9}, 0);
  shares.start(1, 0, 1, 1'000'000, 0);
  shares.start(2, 1, 0, 1'000'000, 0);
  for (const auto& [message, end] : ends_of(shares)) EXPECT_EQ(end, kMillisecond) << message;
}

/// From 0 to 1 and to 2, and from 3 to 2 twice: link 2 gives a third each, and 0 has two thirds left for the first.
TEST(FairShares, WhatOneCannotUseAnotherHas) {
  FairShares shares({1e9, 1e9, 1e9, 1e9}, 0);
  shares.start(1, 0, 1, 2'000'000, 0);
  shares.start(2, 0, 2, 1'000'000, 0);
  shares.start(3, 3, 2, 1'000'000, 0);
  shares.start(4, 3, 2, 1'000'000, 0);
  for (const auto& [message, end] : ends_of(shares)) EXPECT_NEAR(static_cast<double>(end), 3e6, 10) << message;
}

TEST(FairShares, WhoComesLaterSharesFromThenOn) {
  FairShares shares({1e9, 1e9, 1e9}, 0);
  shares.start(1, 0, 1, 2'000'000, 0);
  shares.start(2, 0, 2, 500'000, kMillisecond);
  const auto ends = ends_of(shares);
  EXPECT_NEAR(static_cast<double>(ends.at(2)), 2e6, 10);
  EXPECT_NEAR(static_cast<double>(ends.at(1)), 2.5e6, 10);
}

TEST(FairShares, RatesChangeOnceInAQuantum) {
  FairShares shares({1e9, 1e9, 1e9}, kMillisecond);
  shares.start(1, 0, 1, 2'000'000, 0);
  shares.start(2, 0, 2, 1'000'000, 0);
  const auto ends = ends_of(shares);
  EXPECT_LE(ends.at(1), 3 * kMillisecond + kMillisecond);
  EXPECT_GE(ends.at(1), 3 * kMillisecond) << "no link carries more than it can";
}

/// However messages begin, each link has carried all of its bytes at no more than its rate, and it idled only while
/// every message of it was held back elsewhere: the last end is at most that of one message after the other.
TEST(FairShares, RandomMessagesAreNeitherTooFastNorStandStill) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    const std::size_t ends = 2 + random() % 7;
    const Nanoseconds quantum = round % 2 == 0 ? 0 : 50'000;
    FairShares shares(std::vector<double>(ends, 1e9), quantum);
    std::vector<double> bytes(2 * ends);
    double all = 0;
    Nanoseconds now = 0;
    std::map<std::uint64_t, Nanoseconds> found;
    const std::uint64_t count = 1 + random() % 40;
    for (std::uint64_t m = 0; m < count; ++m) {
      const std::size_t from = random() % ends;
      const std::size_t to = (from + 1 + random() % (ends - 1)) % ends;
      const std::size_t size = random() % 1'000'000;
      now += static_cast<Nanoseconds>(random() % 200'000);
      while (shares.next() <= now) {
        const Nanoseconds next = shares.next();
        for (const std::uint64_t message : shares.through(next)) found[message] = next;
      }
      shares.start(m, from, to, size, now);
      bytes[2 * from] += static_cast<double>(size);
      bytes[2 * to + 1] += static_cast<double>(size);
      all += static_cast<double>(size);
    }
    found.merge(ends_of(shares));
    ASSERT_EQ(found.size(), count) << "each is through once";
    Nanoseconds last = 0;
    for (const auto& [message, end] : found) last = std::max(last, end);
    EXPECT_GE(static_cast<double>(last) * 1.0 + static_cast<double>(quantum) + 1, *std::ranges::max_element(bytes));
    EXPECT_LE(last, now + static_cast<Nanoseconds>(all) + static_cast<Nanoseconds>(count) * (quantum + 2));
  }
}

}  // namespace
}  // namespace casync
