// The segment that the ranks of a host share. These need no MPI.
#include "transport/host/host_memory.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <set>
#include <string>

#include "transport/host/heads.hpp"
#include "transport/mailbox.hpp"

namespace casync::transport::host {
namespace {

constexpr std::uint64_t kNonce = 41;

/// A name of this process's own; gone at the end.
struct Name {
  ~Name() { HostMemory::unlink(text); }
  std::string text = "/casync-test-" + std::to_string(getpid());
};

TEST(HostMemory, IsSeenByWhoOpensItAndByNobodyElse) {
  const Name name;
  const auto mine = HostMemory::create(name.text, 3, kNonce);
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(HostMemory::create(name.text, 3, kNonce), nullptr);  // there already
  EXPECT_EQ(HostMemory::open(name.text, 3, kNonce + 1), nullptr);
  EXPECT_EQ(HostMemory::open(name.text, 4, kNonce), nullptr);
  const auto other = HostMemory::open(name.text, 3, kNonce);
  ASSERT_NE(other, nullptr);
  mine->bell(2).word = 5;
  EXPECT_EQ(other->bell(2).word, 5U);
  MailboxWriter writer(mine->mailbox(0, 2));
  ASSERT_TRUE(writer.put(9, {}));
  EXPECT_TRUE(MailboxReader(other->mailbox(0, 2)).front());
  EXPECT_FALSE(MailboxReader(other->mailbox(2, 0)).front());
}

TEST(HostMemory, HasAMailboxForEachPairAndWay) {
  const Name name;
  constexpr int kRanks = 5;
  const auto memory = HostMemory::create(name.text, kRanks, kNonce);
  ASSERT_NE(memory, nullptr);
  std::set<std::byte*> begins;
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) {
      if (from == to) continue;
      const auto box = memory->mailbox(from, to);
      std::memset(box.data(), 0, box.size());  // all of it is mapped
      EXPECT_GE(reinterpret_cast<std::byte*>(box.data()), reinterpret_cast<std::byte*>(&memory->bell(kRanks)));
      EXPECT_TRUE(begins.insert(box.data()).second);
      EXPECT_TRUE(MailboxWriter(box).put(0, std::vector<std::byte>(kHeadBytes)));
    }
  }
  auto at = begins.begin();
  for (std::byte* last = *at++; at != begins.end(); last = *at++) {
    EXPECT_GE(*at - last, static_cast<std::ptrdiff_t>(memory->mailbox(0, 1).size()));
  }
}

TEST(HostMemory, ManyRanksHaveBellsAlone) {
  const Name name;
  const auto memory = HostMemory::create(name.text, 200, kNonce);
  ASSERT_NE(memory, nullptr);
  EXPECT_TRUE(memory->mailbox(0, 1).empty());
  const auto other = HostMemory::open(name.text, 200, kNonce);
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(other->mailbox(7, 3).empty());
}

TEST(HostMemory, LittleSharedMemoryMeansNoMailboxesAndNoneNoBells) {
  const Name name;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto created_below = [&](rlim_t bytes) {
    const rlimit limit{bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    return HostMemory::create(name.text, 4, kNonce);
  };
  const auto none = created_below(64);  // first: a name that is taken could not be created either
  const auto little = created_below(64 * 1024);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_NE(little, nullptr);
  EXPECT_EQ(none, nullptr);
  EXPECT_TRUE(little->mailbox(0, 1).empty());
  const auto other = HostMemory::open(name.text, 4, kNonce);
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(other->mailbox(0, 1).empty());
}

TEST(HostMemory, AloneThereIsABellAndNoMailbox) {
  const auto memory = HostMemory::own();
  memory->bell(0).word = 1;
  EXPECT_TRUE(memory->mailbox(0, 0).empty());
}

}  // namespace
}  // namespace casync::transport::host
