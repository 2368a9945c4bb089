// Mailboxes: what is put in comes out, whole and in order, however full the box is, and nothing else does.
#include "transport/mailbox.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "casync/error.hpp"

namespace casync::transport {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kRing = 1024;

/// Zeroed memory of a box, and both its ends.
struct Box {
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::span<std::byte> memory() { return {lines.front().bytes, lines.size() * sizeof(Line)}; }
  std::byte* ring() { return memory().data() + sizeof(MailboxCell); }

  std::vector<Line> lines = std::vector<Line>((sizeof(MailboxCell) + kRing) / sizeof(Line));
  MailboxWriter writer{memory()};
  MailboxReader reader{memory()};
};

Bytes pattern(std::uint64_t number, std::size_t bytes) {
  std::mt19937_64 random(number);
  Bytes data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

bool holds(const std::optional<MailboxReader::Message>& message, std::uint64_t kind, const Bytes& bytes) {
  return message && message->kind == kind && Bytes(message->bytes.begin(), message->bytes.end()) == bytes;
}

TEST(Mailbox, GivesWhatWasPutInOrderAtAnyPlaceOfTheRing) {
  Box box;
  std::mt19937 random(7);
  std::uint64_t put = 0, taken = 0;
  std::vector<std::size_t> sizes;
  while (taken < 5'000) {
    const std::size_t bytes = random() % 449;  // up to half the ring, with its header
    if (random() % 2 == 0 && box.writer.put(put, pattern(put, bytes))) {
      sizes.push_back(bytes);
      ++put;
    }
    if (random() % 2 == 0 && taken < put) {
      ASSERT_TRUE(holds(box.reader.front(), taken, pattern(taken, sizes[taken]))) << taken;
      box.reader.pop();
      ++taken;
    }
    if (taken == put) {
      ASSERT_FALSE(box.reader.front());
    }
  }
}

TEST(Mailbox, TheOldestMessageStaysUntilItIsPopped) {
  Box box;
  ASSERT_TRUE(box.writer.put(1, pattern(1, 100)));
  const auto first = box.reader.front();
  while (box.writer.put(2, pattern(2, 100))) {
  }
  EXPECT_TRUE(holds(first, 1, pattern(1, 100)));
  EXPECT_TRUE(holds(box.reader.front(), 1, pattern(1, 100)));
}

TEST(Mailbox, AnEmptyOneHasRoomForTheLargestWhereverItStands) {
  for (std::size_t start = 0; start < kRing; start += 64) {
    Box box;
    for (std::size_t at = 0; at < start; at += 64) {
      ASSERT_TRUE(box.writer.put(0, {}));
      ASSERT_TRUE(box.reader.front());
      box.reader.pop();
    }
    EXPECT_TRUE(box.writer.put(5, pattern(5, kRing / 2 - 64))) << start;
    EXPECT_TRUE(holds(box.reader.front(), 5, pattern(5, kRing / 2 - 64))) << start;
    EXPECT_THROW(box.writer.put(6, Bytes(kRing / 2)), std::exception);
  }
}

TEST(Mailbox, TheReaderTellsOnceThatThereIsRoomIfTheWriterWaitsForIt) {
  Box box;
  ASSERT_TRUE(box.writer.put(0, Bytes(400)));
  ASSERT_TRUE(box.reader.front());
  EXPECT_FALSE(box.reader.pop());  // nobody waits
  while (box.writer.put(0, Bytes(300))) {
  }
  ASSERT_TRUE(box.reader.front());
  EXPECT_TRUE(box.reader.pop());
  ASSERT_TRUE(box.reader.front());
  EXPECT_FALSE(box.reader.pop());
}

TEST(Mailbox, TwoThreadsNeverBothWait) {
  Box box;
  constexpr std::uint64_t kMessages = 50'000;
  std::atomic<std::uint32_t> room{0};  // what a bell would be
  std::thread sender([&] {
    const Bytes message(300);
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      while (true) {
        const std::uint32_t seen = room.load();
        if (box.writer.put(i, message)) break;
        room.wait(seen);
      }
    }
  });
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    std::optional<MailboxReader::Message> message;
    while (!(message = box.reader.front())) std::this_thread::yield();
    EXPECT_EQ(message->kind, i);
    if (box.reader.pop()) {
      ++room;
      room.notify_one();
    }
  }
  sender.join();
}

TEST(Mailbox, WhatNoWriterWritesIsAnErrorAndNothingOutsideIsRead) {
  const std::uint64_t odd[] = {
      1, 65, kRing - 64, kRing - 63, kRing, kRing + 1, 1 << 20, ~std::uint64_t{0} - 1, ~std::uint64_t{0}};
  for (const std::uint64_t bytes : odd) {
    Box box;
    ASSERT_TRUE(box.writer.put(0, {}));
    std::memcpy(box.ring(), &bytes, sizeof bytes);
    EXPECT_THROW(box.reader.front(), CorruptPayload) << bytes;
  }
  Box counted;
  reinterpret_cast<MailboxCell*>(counted.memory().data())->written = kRing + 64;
  EXPECT_THROW(counted.reader.front(), CorruptPayload);
}

TEST(Mailbox, NeedsMemoryInWholeLines) {
  Box box;
  EXPECT_THROW(MailboxWriter(box.memory().first(sizeof(MailboxCell))), std::exception);
  EXPECT_THROW(MailboxReader(box.memory().first(sizeof(MailboxCell) + 65)), std::exception);
}

}  // namespace
}  // namespace casync::transport
