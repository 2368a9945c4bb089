#include "conformance.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace casync::transport::test {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

// Waits of kForever that do not end early show as more than kPatience; a busy machine alone does not.
constexpr Nanoseconds kForever = 60 * kSecond;
constexpr auto kPatience = std::chrono::seconds(50);

TEST_P(TransportConformance, HeadsArriveWholeAndInTheOrderSent) {
  GetParam()->run([](Rank& self) {
    const std::size_t largest = self.transport->head_bytes();
    ASSERT_GE(largest, 4096u);
    const std::vector<std::size_t> sizes{0, 1, 7, 64, 1000, 4096, largest - 1, largest};
    constexpr std::uint64_t kRounds = 25;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        for (const casync::Rank peer : self.peers()) {
          self.transport->send_head(peer, pattern(self.rank(), peer, round * sizes.size() + i, sizes[i]));
        }
      }
    }
    for (const casync::Rank peer : self.peers()) {
      const std::size_t all = kRounds * sizes.size();
      ASSERT_TRUE(self.until([&] { return self.told.heads[peer].size() >= all; }));
      for (std::uint64_t i = 0; i < all; ++i) {
        ASSERT_EQ(self.told.heads[peer][i], pattern(peer, self.rank(), i, sizes[i % sizes.size()])) << "head " << i;
      }
    }
  });
}

TEST_P(TransportConformance, BodiesOfAnySizeArriveWhole) {
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return;
    const std::vector<std::size_t> sizes{0, 1, 3, 4095, 4097, 65537, (1 << 20) + 13, (40 << 20) - 5};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Bytes out = pattern(self.rank(), self.next(), i, sizes[i]);
      Bytes in(sizes[i]);
      self.transport->accept(self.previous(), in, i);
      self.transport->send_body(self.next(), out, i);
      ASSERT_TRUE(self.until([&] { return self.told.bodies.size() > i && self.told.sent.size() > i; })) << sizes[i];
      EXPECT_EQ(self.told.bodies.back(), i);
      EXPECT_EQ(self.told.sent.back(), i);
      ASSERT_TRUE(in == pattern(self.previous(), self.rank(), i, sizes[i])) << sizes[i];
    }
  });
}

TEST_P(TransportConformance, BodiesMeetAcceptsInOrderWithManyOutstanding) {
  GetParam()->run([](Rank& self) {
    constexpr std::uint64_t kBodies = 60;
    const auto bytes = [](std::uint64_t i) { return static_cast<std::size_t>((i * 7919) % 50000); };
    std::map<int, std::vector<Bytes>> in, out;
    for (const casync::Rank peer : self.peers()) {
      for (std::uint64_t i = 0; i < kBodies; ++i) {
        out[peer].push_back(pattern(self.rank(), peer, i, bytes(i)));
        in[peer].emplace_back(bytes(i));
      }
    }
    for (std::uint64_t i = 0; i < kBodies; ++i) {
      for (const casync::Rank peer : self.peers()) {
        const std::uint64_t id = static_cast<std::uint64_t>(peer) * kBodies + i;
        self.transport->send_body(peer, out[peer][i], id);
        self.transport->accept(peer, in[peer][i], id);
      }
    }
    const std::size_t all = kBodies * self.peers().size();
    ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == all && self.told.sent.size() == all; }));
    EXPECT_EQ(std::set(self.told.bodies.begin(), self.told.bodies.end()).size(), all);
    EXPECT_EQ(std::set(self.told.sent.begin(), self.told.sent.end()).size(), all);
    for (const casync::Rank peer : self.peers()) {
      for (std::uint64_t i = 0; i < kBodies; ++i) {
        ASSERT_TRUE(in[peer][i] == pattern(peer, self.rank(), i, bytes(i))) << "body " << i << " of " << peer;
      }
    }
  });
}

TEST_P(TransportConformance, AcceptMayComeLongAfterTheSend) {
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return;
    constexpr std::size_t kBytes = 3'000'001;
    const Bytes large = pattern(self.rank(), self.next(), 0, kBytes);
    const Bytes small = pattern(self.rank(), self.next(), 1, 100);
    self.transport->send_body(self.next(), large, 1);
    self.transport->send_body(self.next(), small, 2);
    self.transport->send_head(self.next(), Bytes(small));
    // The head overtakes the bodies nobody has accepted, and nothing completes without an accept.
    // Who has sent may be through before its body was accepted, and at the last barrier.
    ASSERT_TRUE(self.until([&] { return !self.told.heads[self.previous()].empty(); }));
    EXPECT_EQ(self.told.heads[self.previous()].front(), pattern(self.previous(), self.rank(), 1, 100));
    self.idle(20 * kMillisecond);
    EXPECT_TRUE(self.told.bodies.empty());
    Bytes first(kBytes), second(100);
    self.transport->accept(self.previous(), first, 11);
    self.transport->accept(self.previous(), second, 12);
    ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == 2 && self.told.sent.size() == 2; }));
    EXPECT_TRUE(first == pattern(self.previous(), self.rank(), 0, kBytes));
    EXPECT_TRUE(second == pattern(self.previous(), self.rank(), 1, 100));
  });
}

/// The accept may be the answer to a head that was sent behind the body: whoever reads both from one stream locks up.
TEST_P(TransportConformance, AnUnacceptedBodyHoldsBackNoHead) {
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return;
    constexpr std::size_t kBytes = 8 << 20, kBodies = 4;  // more than any buffer of the network's
    constexpr std::size_t kHeads = 100;
    const Bytes body = pattern(self.rank(), self.next(), 0, kBytes);
    for (std::uint64_t i = 0; i < kBodies; ++i) self.transport->send_body(self.next(), body, i);
    for (std::size_t i = 0; i < kHeads; ++i) {
      for (const casync::Rank peer : self.peers()) self.transport->send_head(peer, Bytes(4000));
    }
    ASSERT_TRUE(self.until([&] {
      for (const casync::Rank peer : self.peers()) {
        if (self.told.heads[peer].size() < kHeads) return false;
      }
      return true;
    }));
    EXPECT_TRUE(self.told.bodies.empty());
    std::vector<Bytes> in;
    for (std::uint64_t i = 0; i < kBodies; ++i) self.transport->accept(self.previous(), in.emplace_back(kBytes), i);
    ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == kBodies && self.told.sent.size() == kBodies; }));
    for (const Bytes& one : in) EXPECT_TRUE(one == pattern(self.previous(), self.rank(), 0, kBytes));
  });
}

TEST_P(TransportConformance, FloodsInEveryDirectionDoNotDeadlock) {
  GetParam()->run([](Rank& self) {
    constexpr std::uint64_t kRounds = 40;
    constexpr std::size_t kBytes = 100'000;
    const Bytes head(1000, std::byte{5}), body(kBytes, std::byte{6});
    std::vector<Bytes> in;
    for (const casync::Rank peer : self.peers()) {
      for (std::uint64_t i = 0; i < kRounds; ++i) self.transport->accept(peer, in.emplace_back(kBytes), i);
    }
    // Everything is handed over before the first poll.
    for (std::uint64_t i = 0; i < kRounds; ++i) {
      for (const casync::Rank peer : self.peers()) {
        for (int k = 0; k < 10; ++k) self.transport->send_head(peer, Bytes(head));
        self.transport->send_body(peer, body, i);
      }
    }
    const std::size_t all = kRounds * self.peers().size();
    ASSERT_TRUE(self.until([&] {
      for (const casync::Rank peer : self.peers()) {
        if (self.told.heads[peer].size() < kRounds * 10) return false;
      }
      return self.told.bodies.size() == all && self.told.sent.size() == all;
    }));
    for (const Bytes& body_in : in) ASSERT_TRUE(body_in == body);
  });
}

TEST_P(TransportConformance, CallbacksMaySendAndAccept) {
  static constexpr std::size_t kHead = 33;
  static constexpr int kEchoes = 1000;
  struct Echo final : Recorder {
    void on_head(casync::Rank peer, std::span<const std::byte> head) override {
      if (head.size() != kHead) return Recorder::on_head(peer, head);  // the last barrier
      if (++echoes < kEchoes) transport->send_head(peer, Bytes(head.begin(), head.end()));
    }
    Transport* transport = nullptr;
    int echoes = 0;
  };
  GetParam()->run([](Rank& self) {
    const casync::Rank partner = self.rank() ^ 1;
    if (partner >= self.size()) return;
    Echo echo;
    echo.transport = self.transport.get();
    self.transport->send_head(partner, Bytes(kHead));
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (echo.echoes < kEchoes && Clock::now() < deadline) {
      if (!self.transport->poll(echo)) self.transport->wait(self.transport->wakes() ? kMillisecond * 50 : 50'000);
    }
    EXPECT_EQ(echo.echoes, kEchoes);
    self.told.heads = echo.heads;
  });
}

TEST_P(TransportConformance, CountersAreExact) {
  GetParam()->run([](Rank& self) {
    const TransportCounters before = self.transport->counters();
    const Bytes head(123), body(100'000);
    std::vector<Bytes> in;
    for (const casync::Rank peer : self.peers()) {
      self.transport->accept(peer, in.emplace_back(body.size()), 0);
      self.transport->send_head(peer, Bytes(head));
      self.transport->send_body(peer, body, 0);
    }
    const std::size_t n = self.peers().size();
    ASSERT_TRUE(self.until([&] {
      for (const casync::Rank peer : self.peers()) {
        if (self.told.heads[peer].empty()) return false;
      }
      return self.told.bodies.size() == n && self.told.sent.size() == n;
    }));
    const TransportCounters& after = self.transport->counters();
    EXPECT_EQ(after.sent_bytes - before.sent_bytes, n * 100'123);
    std::uint64_t head_bytes = 0, heads = 0;  // faster peers are at the last barrier already
    for (const casync::Rank peer : self.peers()) {
      for (const Bytes& received : self.told.heads[peer]) {
        head_bytes += received.size();
        ++heads;
      }
    }
    EXPECT_GE(heads, n);
    EXPECT_EQ(after.received_bytes - before.received_bytes, n * 100'000 + head_bytes);
    EXPECT_EQ(after.sent_messages - before.sent_messages, n * 2);
    EXPECT_EQ(after.received_messages - before.received_messages, n + heads);
  });
}

TEST_P(TransportConformance, AcceptsAloneMoveNothing) {
  GetParam()->run([](Rank& self) {
    self.barrier();
    Bytes in(1 << 20);
    const Bytes out(in.size());
    if (self.size() > 1) self.transport->accept(self.previous(), in, 1);  // waits for a peer's program
    EXPECT_TRUE(self.until([&] { return !self.transport->moving(); })) << "an accept alone moves nothing";
    self.idle(5 * kMillisecond);
    EXPECT_TRUE(self.told.bodies.empty());
    EXPECT_TRUE(self.told.downs.empty());
    if (self.size() > 1) {
      self.barrier();
      self.transport->send_body(self.next(), out, 2);
      ASSERT_TRUE(self.until([&] { return !self.told.bodies.empty() && !self.told.sent.empty(); }));
    }
  });
}

TEST_P(TransportConformance, WakeEndsTheWaitFromAnyThread) {
  GetParam()->run([](Rank& self) {
    constexpr int kWakes = 500;
    std::atomic<int> asked{0};
    int seen = 0;
    std::thread waker([&] {
      for (int i = 0; i < kWakes; ++i) {
        ++asked;
        self.transport->wake();
        if (i % 3 == 0) std::this_thread::yield();
      }
    });
    const auto start = Clock::now();
    // Each wait may outlast many wakes, but after the last wake none may sleep until its timeout.
    while (seen < kWakes) {
      self.transport->wait(kForever);
      seen = asked.load();
    }
    EXPECT_LT(Clock::now() - start, kPatience);
    waker.join();
    self.transport->wait(1);  // takes a last wake
    self.transport->wake();   // before the wait: not lost
    const auto late = Clock::now();
    self.transport->wait(kForever);
    EXPECT_LT(Clock::now() - late, kPatience);
  });
}

TEST_P(TransportConformance, WaitWithoutNewsEndsAtItsTimeout) {
  GetParam()->run([](Rank& self) {
    self.idle(5 * kMillisecond);
    self.transport->wait(0);
    const auto start = Clock::now();
    self.transport->wait(5 * kMillisecond);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(2));
  });
}

TEST_P(TransportConformance, HeadsOfPeersEndTheWait) {
  if (!GetParam()->same_host()) GTEST_SKIP() << "peers of other hosts cannot wake this rank";
  GetParam()->run([](Rank& self) {
    EXPECT_TRUE(self.transport->wakes());
    if (self.size() == 1) return;
    // A token goes round; everybody else sleeps for up to a minute at a time, so one lost ring fails the test.
    constexpr int kLaps = 200;
    const auto start = Clock::now();
    for (int lap = 0; lap < kLaps; ++lap) {
      if (self.rank() == 0) self.transport->send_head(self.next(), Bytes(16));
      while (self.told.heads[self.previous()].size() <= static_cast<std::size_t>(lap)) {
        if (!self.transport->poll(self.told)) self.transport->wait(kForever);
        ASSERT_LT(Clock::now() - start, kPatience) << "lap " << lap;
      }
      if (self.rank() != 0) self.transport->send_head(self.next(), Bytes(16));
    }
  });
}

TEST_P(TransportConformance, FlushHandsOverWhatIsQueued) {
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return self.transport->flush(kSecond);
    const Bytes body = pattern(self.rank(), self.next(), 0, 2'000'000);
    Bytes in(body.size());
    self.transport->accept(self.previous(), in, 1);
    self.barrier();
    self.transport->send_body(self.next(), body, 1);
    self.transport->flush(kSecond / 2);  // everybody is in flush: the copies may have to wait for polls
    ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == 1 && self.told.sent.size() == 1; }));
    EXPECT_TRUE(in == pattern(self.previous(), self.rank(), 0, in.size()));
  });
}

TEST_P(TransportConformance, CloseDropsOutstandingAccepts) {
  for (int round = 0; round < 3; ++round) {
    GetParam()->run([](Rank& self) {
      std::vector<Bytes> memory;
      for (const casync::Rank peer : self.peers()) {
        self.transport->accept(peer, memory.emplace_back(1000), 1);
        self.transport->accept(peer, memory.emplace_back(10'000'000), 2);
      }
      self.barrier();
      self.close();
      EXPECT_TRUE(self.told.bodies.empty());
    });
  }
}

TEST_P(TransportConformance, CloseDropsBodiesNobodyAccepted) {
  for (int round = 0; round < 3; ++round) {
    GetParam()->run([](Rank& self) {
      const Bytes small(1000), large(5'000'000);
      for (const casync::Rank peer : self.peers()) {
        self.transport->send_body(peer, small, 1);
        self.transport->send_body(peer, large, 2);
      }
      self.barrier();
      self.close();
    });
  }
}

/// Who closes as soon as its body was sent takes nothing away from a peer that has not looked yet, and leaves nothing
/// to the session that comes next.
TEST_P(TransportConformance, ACloseComesBehindTheBodies) {
  constexpr std::size_t kBytes = 20'000;
  for (std::uint64_t session = 0; session < 4; ++session) {
    GetParam()->run([&](Rank& self) {
      if (self.peers().empty()) return;
      const Bytes out = pattern(self.rank(), self.next(), session, kBytes);
      Bytes in(kBytes);
      self.transport->accept(self.previous(), in, 1);
      self.barrier();
      self.transport->send_body(self.next(), out, 2);
      if (self.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == 1 && self.told.sent.size() == 1; }));
      EXPECT_TRUE(in == pattern(self.previous(), self.rank(), session, kBytes));
      self.close();
    });
  }
}

/// A body may have left its sender before it is accepted. The sender may then be gone when the accept comes.
TEST_P(TransportConformance, WhatWasSentBeforeACloseIsAcceptedAfterIt) {
  constexpr std::size_t kBytes = 3'000;
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return;
    self.barrier();
    const auto told_of_previous = [&] {
      return std::ranges::any_of(self.told.downs, [&](const auto& down) { return down.first == self.previous(); });
    };
    if (self.rank() == 0) {
      const Bytes first = pattern(0, 1, 0, kBytes), second = pattern(0, 1, 1, kBytes);
      self.transport->send_body(1, first, 1);
      self.transport->send_body(1, second, 2);
      ASSERT_TRUE(self.until([&] { return self.told.sent.size() == 2; }));
      return self.close();
    }
    if (self.rank() == 1) {
      self.until(told_of_previous, kSecond / 2);  // some transports send nothing unasked
      Bytes first(kBytes), second(kBytes);
      self.transport->accept(0, first, 1);
      self.idle(kMillisecond);
      self.transport->accept(0, second, 2);
      ASSERT_TRUE(self.until([&] { return self.told.bodies.size() == 2; }, 10 * kSecond));
      EXPECT_TRUE(first == pattern(0, 1, 0, kBytes));
      EXPECT_TRUE(second == pattern(0, 1, 1, kBytes));
      ASSERT_TRUE(self.until(told_of_previous));
    }
    self.close();
  });
}

TEST_P(TransportConformance, PeersHearOfAClose) {
  GetParam()->run([](Rank& self) {
    if (self.size() == 1) return;
    self.barrier();
    if (self.rank() == 0) {
      for (const casync::Rank peer : self.peers()) self.transport->send_head(peer, Bytes(9));
      self.close();
      return;
    }
    const auto told_of_zero = [&] {
      return std::any_of(self.told.downs.begin(), self.told.downs.end(),
                         [](const auto& down) { return down.first == 0; });
    };
    ASSERT_TRUE(self.until(told_of_zero));
    EXPECT_EQ(self.told.heads[0].size(), 1u) << "what was sent before the close comes first";
    self.transport->send_head(0, Bytes(5));  // nobody is there: ignored
    Bytes in(5);
    self.transport->accept(0, in, 1);
    self.idle(kMillisecond);
    self.close();
  });
}

TEST_P(TransportConformance, TwoSessionsOfTheSameRanksDoNotMeet) {
  GetParam()->run_two([](Rank& first, Rank& second) {
    for (const casync::Rank peer : first.peers()) {
      first.transport->send_head(peer, pattern(1, 1, 1, 100));
      second.transport->send_head(peer, pattern(2, 2, 2, 200));
    }
    for (const casync::Rank peer : first.peers()) {
      ASSERT_TRUE(second.until([&] { return !second.told.heads[peer].empty(); }));
      ASSERT_TRUE(first.until([&] { return !first.told.heads[peer].empty(); }));
      EXPECT_EQ(first.told.heads[peer].front(), pattern(1, 1, 1, 100));
      EXPECT_EQ(second.told.heads[peer].front(), pattern(2, 2, 2, 200));
    }
  });
}

}  // namespace
}  // namespace casync::transport::test
