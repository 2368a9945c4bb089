#include "session/published.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "casync/session.hpp"

namespace casync {
namespace {

/// Only its address is used.
Session& some(char& place) { return reinterpret_cast<Session&>(place); }

TEST(Published, IsFoundByTheNumberOfItsSet) {
  Published table;
  char first = 0, second = 0;
  table.put(0, some(first));
  table.put(3, some(second));
  EXPECT_EQ(table.hold(3), &some(second));
  EXPECT_EQ(table.hold(0), &some(first));
  EXPECT_EQ(table.hold(1), nullptr);
  table.release(some(first));
  table.take(0);
  EXPECT_EQ(table.hold(0), nullptr);
  table.release(some(second));
  table.take(3);
  table.take(3);  // there is none any more
}

TEST(Published, WhatIsHeldIsNotTakenAwayAndNotGivenOutAgain) {
  Published table;
  char place = 0;
  table.put(0, some(place));
  EXPECT_EQ(table.hold(0), table.hold(0));
  std::atomic<bool> taken = false;
  std::thread taking([&] {
    table.take(0);
    taken = true;
  });
  table.release(some(place));
  while (Session* const session = table.hold(0)) table.release(*session);  // until take() has begun
  EXPECT_FALSE(taken);
  table.release(some(place));
  taking.join();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace casync
