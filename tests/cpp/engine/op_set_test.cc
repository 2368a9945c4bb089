// Sets of operations as bit vectors, beside std::set.
#include "engine/op_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace casync {
namespace {

constexpr std::uint32_t kHighest = 0xffffffffU;

std::vector<std::uint32_t> list_of(const OpSet& set) {
  std::vector<std::uint32_t> ops;
  set.for_each([&](std::uint32_t op) { ops.push_back(op); });
  return ops;
}

OpSet written_and_read(const OpSet& set) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  set.put(writer);
  ByteReader reader(bytes);
  OpSet read = OpSet::get(reader);
  EXPECT_EQ(reader.left(), 0U);
  return read;
}

TEST(OpSet, HoldsWhatWasInsertedInAscendingOrder) {
  std::mt19937 generator(1);
  const auto below = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(generator() % limit); };
  for (int turn = 0; turn < 500; ++turn) {
    const std::uint32_t base = turn % 3 == 0 ? 0 : below(100'000);
    const std::uint32_t span = 1 + below(400);
    std::set<std::uint32_t> reference;
    OpSet set;
    for (std::uint32_t i = below(50); i > 0; --i) {
      const std::uint32_t op = base + below(span);
      reference.insert(op);
      set.insert(op);
    }
    EXPECT_EQ(list_of(set), std::vector(reference.begin(), reference.end()));
    EXPECT_EQ(set.empty(), reference.empty());
    EXPECT_EQ(list_of(written_and_read(set)), list_of(set));
  }
}

TEST(OpSet, HoldsTheLowestAndTheHighestNumber) {
  EXPECT_EQ(list_of(written_and_read({0})), (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(list_of(written_and_read({kHighest, kHighest - 100})),
            (std::vector<std::uint32_t>{kHighest - 100, kHighest}));
}

TEST(OpSet, TakesABitForEachAndEightBytesMore) {
  OpSet set;
  for (std::uint32_t op = 64; op < 64 + 400; ++op) set.insert(op);
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  set.put(writer);
  EXPECT_EQ(bytes.size(), 8U + 7 * 8);  // 400 bits in words of 64
}

TEST(OpSet, RefusesBytesThatAreNone) {
  const auto refused = [](std::uint32_t first, std::uint32_t words, std::uint32_t bytes) {
    std::vector<std::byte> message;
    ByteWriter writer(message);
    writer.put(first);
    writer.put(words);
    message.resize(message.size() + bytes);
    ByteReader reader(message);
    EXPECT_THROW(static_cast<void>(OpSet::get(reader)), CorruptPayload) << first << ' ' << words << ' ' << bytes;
  };
  refused(0, 1, 7);
  refused(0, kHighest, 64);
  refused(kHighest, 1, 8);
  refused(kHighest / 64, 2, 16);  // the second word lies beyond the highest number
}

}  // namespace
}  // namespace casync
