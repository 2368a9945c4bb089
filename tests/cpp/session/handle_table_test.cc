// Which operation a handle finds: that which it was given out for, and none when that is over.
#include "session/handle_table.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace casync {
namespace {

void close(HandleTable& table) {
  table.close([](HandleTable::Entry&) {});
}

TEST(HandleTable, FindsEachOperationByItsHandle) {
  HandleTable table(3);
  std::vector<Session::Handle> handles;
  std::vector<const Operation*> operations;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    HandleTable::Entry& entry = table.add();
    entry.registration = i;
    handles.push_back(table.handle_of(entry));
    operations.push_back(&*entry.operation);
    EXPECT_EQ(&table[entry.operation->index], &entry);
  }
  EXPECT_EQ(std::set(handles.begin(), handles.end()).size(), handles.size());
  for (std::uint32_t i = 0; i < handles.size(); ++i) {
    HandleTable::Entry* const found = table.find(handles[i]);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->registration, i);
    EXPECT_EQ(&*found->operation, operations[i]) << "the executor has its address";
  }
}

TEST(HandleTable, AHandleThatWasCollectedFindsNothingThoughItsEntryIsUsedAgain) {
  HandleTable table(0);
  HandleTable::Entry& first = table.add();
  const Session::Handle stale = table.handle_of(first);
  table.release(first);
  EXPECT_EQ(table.find(stale), nullptr);
  HandleTable::Entry& second = table.add();
  EXPECT_EQ(&second, &first);
  EXPECT_EQ(table.find(stale), nullptr);
  EXPECT_EQ(table.find(table.handle_of(second)), &second);
}

TEST(HandleTable, AHandleThatWasNeverGivenOutFindsNothing) {
  HandleTable table(0);
  EXPECT_EQ(table.find(0), nullptr);
  const Session::Handle handle = table.handle_of(table.add());
  EXPECT_EQ(table.find(handle + 1), nullptr) << "an entry that is not there";
  EXPECT_EQ(table.find(~Session::Handle{0}), nullptr);
}

TEST(HandleTable, AHandleOfASessionOfAnotherNumberFindsNothing) {
  HandleTable one(1), two(2);
  const Session::Handle of_one = one.handle_of(one.add()), of_two = two.handle_of(two.add());
  EXPECT_EQ(of_one >> kHandleBits, 1U);
  EXPECT_EQ(of_two >> kHandleBits, 2U);
  EXPECT_EQ(one.find(of_two), nullptr);
  EXPECT_EQ(two.find(of_one), nullptr);
}

TEST(HandleTable, AHandleOfASessionThatIsOverFindsNothingInOneOfItsNumber) {
  HandleTable before(7);
  std::vector<Session::Handle> handles;
  for (int i = 0; i < 5; ++i) {
    HandleTable::Entry& entry = before.add();
    handles.push_back(before.handle_of(entry));
    before.release(entry);
  }
  handles.push_back(before.handle_of(before.add()));  // which is outstanding when the session ends
  int closed = 0;
  before.close([&](HandleTable::Entry& entry) { closed += entry.operation ? 1 : 0; });
  EXPECT_EQ(closed, 1);
  HandleTable after(7);
  const Session::Handle handle = after.handle_of(after.add());
  for (const Session::Handle old : handles) EXPECT_EQ(after.find(old), nullptr);
  EXPECT_NE(after.find(handle), nullptr);
  close(after);
}

TEST(HandleTable, AGenerationBeyondItsBitsLeavesTheSessionsNumberAlone) {
  HandleTable table(9);
  HandleTable::Entry& entry = table.add();
  entry.generation = (1U << (kHandleBits / 2)) - 1;
  const Session::Handle last = table.handle_of(entry);
  table.release(entry);
  const Session::Handle next = table.handle_of(table.add());
  EXPECT_EQ(next >> kHandleBits, 9U);
  EXPECT_NE(next, last);
  EXPECT_EQ(table.find(last), nullptr);
  EXPECT_NE(table.find(next), nullptr);
}

}  // namespace
}  // namespace casync
