// Slots are given out again, and kept up to a bound.
#include "executor/memory/slot_pool.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

class Counted final : public Allocator {
 public:
  std::byte* allocate(std::size_t bytes) override {
    ++allocated;
    return host_memory().allocate(bytes);
  }
  void free(std::byte* memory) override {
    ++freed;
    host_memory().free(memory);
  }

  int allocated = 0;
  int freed = 0;
};

TEST(SlotPool, GivesOutAgainWhatItKeeps) {
  Counted memory;
  {
    SlotPool pool(memory, 1 << 20);
    for (int step = 0; step < 3; ++step) {
      SlotPool::Slot one = pool.take(100'000);
      SlotPool::Slot other = pool.take(100'001);
      EXPECT_GE(one.capacity, 100'000U);
      pool.give_back(one);
      pool.give_back(other);
      pool.give_back(other);  // nothing
    }
    EXPECT_EQ(memory.allocated, 2);
    EXPECT_EQ(memory.freed, 0);
  }
  EXPECT_EQ(memory.freed, 2);
}

TEST(SlotPool, KeepsNoMoreThanItsBound) {
  Counted memory;
  SlotPool pool(memory, 1 << 20);
  std::vector<SlotPool::Slot> slots;
  for (int i = 0; i < 5; ++i) slots.push_back(pool.take(256 << 10));
  for (SlotPool::Slot& slot : slots) pool.give_back(slot);
  EXPECT_EQ(memory.freed, 1);
  EXPECT_EQ(pool.held(), std::size_t{1} << 20U);
  SlotPool none(memory, 0);
  SlotPool::Slot slot = none.take(1);
  none.give_back(slot);
  EXPECT_EQ(memory.freed, 2);
  EXPECT_EQ(none.held(), 0U);
}

}  // namespace
}  // namespace casync
