#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <tuple>

#include "casync/error.hpp"
#include "conformance.hpp"
#include "transport/tcp/tcp_transport.hpp"

// Ranks are threads; the sockets between them are those of real processes.
namespace casync::transport::test {
namespace {

using Bytes = std::vector<std::byte>;

enum class Kind : std::uint8_t { tcp, unix_domain };

std::pair<int, int> connected_tcp() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw std::runtime_error("no loopback");
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(one, reinterpret_cast<sockaddr*>(&address), length) != 0) throw std::runtime_error("no connection");
  const int other = accept(listener, nullptr, nullptr);
  close(listener);
  return {one, other};
}

std::pair<int, int> connected(Kind kind) {
  if (kind == Kind::tcp) return connected_tcp();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) throw std::runtime_error("no socketpair");
  return {pair[0], pair[1]};
}

/// Per rank, per peer.
using Sockets = std::vector<std::vector<PeerSockets>>;

Sockets sockets_of(casync::Rank size, Kind kind, int streams) {
  Sockets all(size, std::vector<PeerSockets>(size));
  for (casync::Rank one = 0; one < size; ++one) {
    for (casync::Rank other = one + 1; other < size; ++other) {
      PeerSockets& here = all[one][other];
      PeerSockets& there = all[other][one];
      std::tie(here.heads, there.heads) = connected(kind);
      for (int i = 0; i < streams; ++i) {
        const auto [mine, theirs] = connected(kind);
        here.bodies.push_back(mine);
        there.bodies.push_back(theirs);
      }
    }
  }
  return all;
}

int next_tag() {
  static std::atomic<int> tag{900};
  return tag++;
}

class SocketWorld final : public World {
 public:
  SocketWorld(casync::Rank size, Kind kind, int streams, bool share_memory)
      : size_(size), kind_(kind), streams_(streams), share_memory_(share_memory) {}

  casync::Rank size() const override { return size_; }

  void run(const std::function<void(Rank&)>& body) override {
    Connected world = connect();
    spawn([&](casync::Rank rank) {
      Rank self(world(rank));
      body(self);
      self.finish();
    });
  }

  void run_two(const std::function<void(Rank&, Rank&)>& body) override {
    Connected one = connect(), two = connect();
    spawn([&](casync::Rank rank) {
      Rank first(one(rank)), second(two(rank));
      body(first, second);
      first.finish();
      second.finish();
    });
  }

 private:
  using Connected = std::function<std::unique_ptr<Transport>(casync::Rank)>;

  Connected connect() const {
    const auto sockets = std::make_shared<Sockets>(sockets_of(size_, kind_, streams_));
    return [this, sockets, tag = next_tag()](casync::Rank rank) {
      return connect_tcp(rank, (*sockets)[rank], std::vector<int>(size_, 0), tag, share_memory_, 20 * kSecond);
    };
  }

  void spawn(const std::function<void(casync::Rank)>& rank_main) const {
    std::vector<std::thread> threads;
    for (casync::Rank rank = 0; rank < size_; ++rank) threads.emplace_back(rank_main, rank);
    for (std::thread& thread : threads) thread.join();
  }

  casync::Rank size_;
  Kind kind_;
  int streams_;
  bool share_memory_;
};

std::shared_ptr<World> world(casync::Rank size, Kind kind, int streams, bool share_memory) {
  return std::make_shared<SocketWorld>(size, kind, streams, share_memory);
}

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(world(1, Kind::tcp, 1, false), world(2, Kind::tcp, 1, false),
                                         world(3, Kind::tcp, 4, false), world(5, Kind::tcp, 2, false),
                                         world(2, Kind::unix_domain, 1, true), world(3, Kind::unix_domain, 1, true),
                                         world(5, Kind::unix_domain, 3, true)),
                         [](const auto& of) {
                           const bool far = of.index < 4;
                           return std::string(far ? "Far" : "OneHost") + std::to_string(of.param->size());
                         });

struct Pair {
  explicit Pair(int streams = 1, Kind kind = Kind::tcp) : sockets(sockets_of(2, kind, streams)) {}

  std::unique_ptr<Transport> connect(casync::Rank rank) {
    return connect_tcp(rank, sockets[rank], std::vector<int>{0, 1}, 1, false, 5 * kSecond);
  }
  std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> both() {
    std::unique_ptr<Transport> one, other;
    std::thread first([&] { one = connect(0); });
    other = connect(1);
    first.join();
    return {std::move(one), std::move(other)};
  }

  Sockets sockets;
};

/// A peer that ends without a goodbye, as the kernel ends it when its process is killed.
void cut(int descriptor, bool reset) {
  const linger at_once{.l_onoff = reset ? 1 : 0, .l_linger = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

class ALostConnection : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(ALostConnection, IsTheEndOfThePeerOnceAfterItsHeads) {
  const auto [lost, reset] = GetParam();  // 0: of heads; 1: a stream
  Pair pair(2);
  // The peer is plain sockets here, so that it can end in any way.
  const PeerSockets peer = pair.sockets[1][0];
  std::thread setup([&] {
    std::uint64_t word = 0;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(write(peer.heads, &word, sizeof word), 8);
      ASSERT_EQ(read(peer.heads, &word, sizeof word), 8);
      word = 1;
    }
  });
  Rank zero(pair.connect(0));
  setup.join();
  const std::uint32_t head[] = {4, 0, 7};  // bytes, kind, the head
  ASSERT_EQ(write(peer.heads, head, sizeof head), 12);
  ASSERT_TRUE(zero.until([&] { return zero.told.heads[1].size() == 1; }));
  Bytes in(1000);
  zero.transport->accept(1, in, 1);
  const int victim = lost == 0 ? peer.heads : peer.bodies[1];
  cut(victim, reset);
  close(victim);
  if (lost == 1 && !reset) {  // an end alone may be that of a close: the heads say so
    zero.idle(5 * kMillisecond);
    EXPECT_TRUE(zero.told.downs.empty());
    close(peer.heads);
  }
  ASSERT_TRUE(zero.until([&] { return !zero.told.downs.empty(); }));
  zero.idle(5 * kMillisecond);
  ASSERT_EQ(zero.told.downs.size(), 1U);
  EXPECT_EQ(zero.told.downs[0].first, 1U);
  EXPECT_NE(zero.told.downs[0].second.find(reset ? "reset" : "ended without a goodbye"), std::string::npos)
      << zero.told.downs[0].second;
  EXPECT_TRUE(zero.told.bodies.empty());
  zero.transport->send_head(1, Bytes(3));  // ignored
  zero.transport->send_body(1, in, 2);
  zero.transport->accept(1, in, 3);
  zero.idle(kMillisecond);
  const auto start = std::chrono::steady_clock::now();
  zero.close();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

INSTANTIATE_TEST_SUITE_P(Tcp, ALostConnection, testing::Combine(testing::Values(0, 1), testing::Bool()));

TEST(TcpTransport, ABodyOfAnotherLengthThanAcceptedIsTheEndOfItsSender) {
  Pair pair;
  auto [one, other] = pair.both();
  Rank zero(std::move(one)), peer(std::move(other));
  Bytes in(99);
  const Bytes out(100);
  zero.transport->accept(1, in, 1);
  peer.transport->send_body(0, out, 1);
  ASSERT_TRUE(zero.until([&] { return !zero.told.downs.empty(); }));
  EXPECT_EQ(zero.told.downs[0].second, "it sent a body of 100 bytes where 99 were accepted");
  ASSERT_TRUE(peer.until([&] { return !peer.told.downs.empty(); }));
  EXPECT_TRUE(zero.told.bodies.empty());
}

/// A rank that stood still for long finds that its peer has sent all, said goodbye and closed its sockets. What it
/// sends itself then fails first.
TEST(TcpTransport, APeerThatHasClosedItsSocketsIsHeardToTheEnd) {
  Pair pair;
  auto [one, other] = pair.both();
  Rank zero(std::move(one)), peer(std::move(other));
  const Bytes out = pattern(1, 0, 0, 3000);
  Bytes in(out.size());
  peer.transport->send_head(0, Bytes(7));
  peer.transport->send_body(0, out, 1);
  ASSERT_TRUE(peer.until([&] { return peer.told.sent.size() == 1; }));
  zero.transport->send_head(1, Bytes(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  peer.transport->close(0);  // with a head that it has not read: the kernel answers with a reset
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    zero.transport->send_head(1, Bytes(5));
  }
  ASSERT_TRUE(zero.until([&] { return !zero.told.downs.empty(); }));
  EXPECT_EQ(zero.told.downs[0].second, "it closed the session");
  EXPECT_EQ(zero.told.heads[1].size(), 1U);
  zero.transport->accept(1, in, 1);
  ASSERT_TRUE(zero.until([&] { return zero.told.bodies.size() == 1; }, 5 * kSecond));
  EXPECT_TRUE(in == out);
}

TEST(TcpTransport, WhatIsNoHeadIsTheEndOfItsSender) {
  Pair pair;
  const PeerSockets peer = pair.sockets[1][0];
  std::thread setup([&] {
    const std::uint64_t words[2] = {0, 1};
    ASSERT_EQ(write(peer.heads, words, sizeof words), 16);
  });
  Rank zero(pair.connect(0));
  setup.join();
  const std::uint32_t head[] = {1U << 30, 0};
  ASSERT_EQ(write(peer.heads, head, sizeof head), 8);
  ASSERT_TRUE(zero.until([&] { return !zero.told.downs.empty(); }));
  EXPECT_NE(zero.told.downs[0].second.find("another version of CaSync"), std::string::npos);
  close(peer.heads);
}

TEST(TcpTransport, APeerThatDoesNotComeIsNamedInTime) {
  Pair pair;
  const auto start = std::chrono::steady_clock::now();
  try {
    connect_tcp(0, pair.sockets[0], std::vector<int>{0, 1}, 1, false, 200 * kMillisecond);
    FAIL();
  } catch (const PeerFailure& error) {
    EXPECT_STREQ(error.what(), "rank 1 has not come");
    EXPECT_EQ(error.facts.peer, 1U);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(TcpTransport, SleepsWhileNothingMoves) {
  Pair pair;
  auto [one, other] = pair.both();
  Rank zero(std::move(one)), peer(std::move(other));
  const auto sleeps = [&] {
    const auto start = std::chrono::steady_clock::now();
    zero.transport->wait(100 * kMillisecond);
    return std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(90);
  };
  Bytes in(1 << 20);
  const Bytes out(1 << 20), unaccepted(3 << 20);
  zero.transport->accept(1, in, 1);
  zero.idle(2 * kMillisecond);
  EXPECT_FALSE(zero.transport->moving());
  EXPECT_TRUE(sleeps()) << "with an accept alone";
  peer.transport->send_body(0, out, 1);
  peer.transport->send_body(0, unaccepted, 2);
  ASSERT_TRUE(zero.until([&] { return zero.told.bodies.size() == 1; }));
  zero.idle(20 * kMillisecond);
  EXPECT_TRUE(sleeps()) << "with a stream that waits for an accept";
  std::thread closing([&] { peer.close(); });
  zero.close();
  closing.join();
}

}  // namespace
}  // namespace casync::transport::test
