// Sockets that are given to a session: what their ranks say to each other before it is one.
#include "transport/tcp/given.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "casync/error.hpp"

namespace casync::transport::test {
namespace {

using tcp::Clock;
using tcp::Given;
using tcp::Socket;

/// Connects two of the ranks whose sockets these are.
void connect(std::vector<std::vector<Given>>& ranks, std::size_t a, std::size_t b) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  ranks[a][b].heads = Socket(ends[0]);
  ranks[b][a].heads = Socket(ends[1]);
}

std::vector<std::vector<Given>> connected(std::size_t size) {
  std::vector<std::vector<Given>> ranks(size);
  for (auto& of : ranks) of.resize(size);
  for (std::size_t a = 0; a < size; ++a) {
    for (std::size_t b = 0; b < a; ++b) connect(ranks, a, b);
  }
  return ranks;
}

TEST(Given, EveryRankGetsEveryWord) {
  auto ranks = connected(3);
  std::vector<std::vector<std::uint64_t>> words(3);
  std::vector<std::thread> threads;
  for (Rank self = 0; self < 3; ++self) {
    threads.emplace_back([&, self] {
      words[self] = tcp::exchange(self, ranks[self], 10 + self, Clock::now() + std::chrono::seconds(10));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of : words) EXPECT_EQ(of, (std::vector<std::uint64_t>{10, 11, 12}));
}

/// Rank 2 was killed, and rank 1 has left because of that. Whoever sees rank 1 first names both.
TEST(Given, AllThatHaveGoneAreNamed) {
  auto ranks = connected(4);
  ranks[1].clear();
  ranks[2].clear();
  try {
    tcp::exchange(0, ranks[0], 1, Clock::now() + std::chrono::seconds(10));
    FAIL() << "nobody is missed";
  } catch (const PeerFailure& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with("rank 1 and rank 2 have gone while the session was connected")) << text;
  }
}

}  // namespace
}  // namespace casync::transport::test
