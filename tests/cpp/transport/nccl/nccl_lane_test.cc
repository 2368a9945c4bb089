// The lane over NCCL with ranks as threads, on the stand-ins for CUDA's driver and NCCL.
#include "transport/nccl/nccl_lane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "lane_rank.hpp"
#include "standin/nccl/standin_nccl.hpp"

namespace casync::nccl::test {
namespace {

/// Letters between threads, which may lie about for a while.
class Post {
 public:
  explicit Post(Rank size) : boxes_(size) {}

  struct Letter {
    Rank from;
    std::vector<std::byte> text;
  };
  class End final : public Mail {
   public:
    End(Post& post, Rank rank, unsigned seed) : post_(post), rank_(rank), random_(seed + rank) {}
    void post(Rank to, std::span<const std::byte> message) override {
      const std::lock_guard lock(post_.mutex_);
      post_.boxes_[to].push_back({rank_, {message.begin(), message.end()}});
    }
    /// Of a sender that is chosen by chance: order holds between two only.
    std::optional<std::pair<Rank, std::vector<std::byte>>> take() override {
      const std::lock_guard lock(post_.mutex_);
      auto& box = post_.boxes_[rank_];
      if (box.empty() || random_() % 4 == 0) return std::nullopt;
      const Rank from = box[random_() % box.size()].from;
      const auto at = std::ranges::find(box, from, &Letter::from);
      std::pair<Rank, std::vector<std::byte>> letter{from, std::move(at->text)};
      box.erase(at);
      return letter;
    }

   private:
    Post& post_;
    Rank rank_;
    std::mt19937 random_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::deque<Letter>> boxes_;
};

void spawn(Rank size, Nanoseconds patience, const std::function<void(LaneRank&)>& body, unsigned seed = 1) {
  Post post(size);
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Post::End end(post, rank, seed);
      LaneRank self(end, {rank, size}, patience);
      self.open();
      body(self);
      self.lane->close(5 * kSecond);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(standin_nccl_comms(), 0);
}

TEST(NcclLane, IsReadyWhereAllAre) {
  for (const Rank size : {1U, 2U, 3U, 5U}) {
    spawn(size, 20 * kSecond, [](LaneRank& self) {
      EXPECT_TRUE(self.until_ready());
      EXPECT_EQ(self.lane->refusal(), "");
      EXPECT_EQ(self.lane->failure(), "");
    });
  }
}

TEST(NcclLane, IsRefusedByAllWhereOneCannot) {
  for (const Rank unable : {0U, 1U, 2U}) {
    standin_nccl_fail(static_cast<int>(unable), "ncclCommInitRankConfig", 1, cuda::kNcclInvalidArgument);
    spawn(3, 20 * kSecond, [&](LaneRank& self) {
      EXPECT_TRUE(self.until([&] { return !self.lane->refusal().empty(); }));
      EXPECT_EQ(self.lane->refusal(), detail::concat("device ", unable % 2, " of rank ", unable,
                                                     ": the devices' communicator (NCCL 2.28.9) failed: "
                                                     "ncclCommInitRankConfig failed with invalid argument (says the "
                                                     "stand-in)"));
      EXPECT_FALSE(self.lane->ready());
      EXPECT_EQ(self.lane->failure(), "") << "what goes by the host goes on";
      EXPECT_FALSE(self.lane->moving());
    });
  }
}

TEST(NcclLane, IsRefusedWhereNoIdIsMade) {
  standin_nccl_fail(-1, "ncclGetUniqueId", 1, cuda::kNcclInvalidUsage);
  spawn(2, 20 * kSecond, [](LaneRank& self) {
    EXPECT_TRUE(self.until([&] { return !self.lane->refusal().empty(); }));
    EXPECT_NE(self.lane->refusal().find("NCCL made no id: invalid usage"), std::string::npos);
  });
}

TEST(NcclLane, IsRefusedWhereACommunicatorBreaksBeforeAllAreReady) {
  standin_nccl_fail(1, "ncclCommGetAsyncError", 1, cuda::kNcclRemoteError);
  spawn(3, 20 * kSecond, [](LaneRank& self) {
    EXPECT_TRUE(self.until([&] { return !self.lane->refusal().empty(); }));
    EXPECT_EQ(self.lane->failure(), "");
  });
}

TEST(NcclLane, IsNotReadyWhereAPeerNeverOpens) {
  Post post(2);
  Post::End end(post, 0, 1);
  LaneRank zero(end, {0, 2}, kSecond / 2);
  zero.open();
  EXPECT_TRUE(zero.until([&] { return !zero.lane->refusal().empty(); }));
  EXPECT_NE(zero.lane->refusal().find("it did not go on for 0.5 s"), std::string::npos) << zero.lane->refusal();
  EXPECT_FALSE(zero.lane->ready());
}

TEST(NcclLane, BodiesMeetInOrderAndAreReportedByTheirIds) {
  spawn(3, 20 * kSecond, [](LaneRank& self) {
    ASSERT_TRUE(self.until_ready());
    const Rank next = (self.world.rank + 1) % 3, previous = (self.world.rank + 2) % 3;
    std::vector<std::unique_ptr<Buffer>> out, in;
    for (unsigned i = 0; i < 20; ++i) {
      const std::size_t bytes = i % 5 == 4 ? 0 : std::size_t{1} << i;
      out.push_back(std::make_unique<Buffer>(self.device, bytes, self.world.rank * 100 + i));
      in.push_back(std::make_unique<Buffer>(self.device, bytes, 999));
      self.send(next, *out.back(), i);
      self.accept(previous, *in.back(), 100 + i);
    }
    ASSERT_TRUE(self.until_over(20, 20));
    for (unsigned i = 0; i < 20; ++i) {
      EXPECT_TRUE(in[i]->equals(previous * 100 + i)) << i;
      EXPECT_EQ(std::ranges::count(self.told.sent, i), 1);
      EXPECT_EQ(std::ranges::count(self.told.bodies, 100 + i), 1);
    }
    EXPECT_FALSE(self.lane->moving());
    EXPECT_GT(self.rings, 0);
  });
}

TEST(NcclLane, ABodyThatIsNotWantedIsReportedAndNotMoved) {
  spawn(2, 20 * kSecond, [](LaneRank& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer first(self.device, 100, 1), second(self.device, 200, self.world.rank == 0 ? 2 : 3);
    if (self.world.rank == 0) {
      self.send(1, first, 1);
      self.send(1, second, 2);
      EXPECT_TRUE(self.until_over(2, 0));
    } else {
      self.lane->accept(0, {.bytes = 100, .kind = MemoryKind::device}, 1);
      self.accept(0, second, 2);
      EXPECT_TRUE(self.until_over(0, 2));
      EXPECT_TRUE(first.equals(1));
      EXPECT_TRUE(second.equals(2));
    }
  });
}

TEST(NcclLane, AnUnacceptedBodyHoldsUpNothing) {
  std::barrier others_are_through(3);
  spawn(3, kSecond, [&](LaneRank& self) {
    ASSERT_TRUE(self.until_ready());
    const Rank rank = self.world.rank;
    const Buffer late(self.device, 70'000, rank == 0 ? 7 : 999);
    if (rank == 0) self.send(1, late, 77);
    std::vector<std::unique_ptr<Buffer>> out, in;
    for (unsigned i = 0; i < 10; ++i) {  // all others, from 1 to 0 as well
      for (Rank peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        const auto mark = [&](Rank from, Rank to) { return i * 9 + from * 3 + to; };
        if (rank != 0 || peer != 1) {
          out.push_back(std::make_unique<Buffer>(self.device, 1000 + i, mark(rank, peer)));
          self.send(peer, *out.back(), i);
        }
        if (rank != 1 || peer != 0) {
          in.push_back(std::make_unique<Buffer>(self.device, 1000 + i, 999));
          self.accept(peer, *in.back(), mark(peer, rank));
        }
      }
    }
    ASSERT_TRUE(self.until_over(out.size(), in.size()));
    EXPECT_EQ(std::ranges::count(self.told.sent, 77U), 0);
    self.until([] { return false; }, 2 * kSecond);  // longer than the watchdog's patience
    EXPECT_EQ(self.lane->failure(), "") << "nothing was launched that waits";
    if (rank == 1) self.accept(0, late, 77);
    EXPECT_TRUE(self.until_over(out.size() + (rank == 0 ? 1 : 0), in.size() + (rank == 1 ? 1 : 0)));
    EXPECT_TRUE(rank == 2 || late.equals(7));
    others_are_through.arrive_and_wait();
  });
}

/// Each rank sends and accepts in an order of its own, and at times of its own.
void run_in_any_order(Rank size, unsigned seed) {
  constexpr unsigned kBodies = 40;
  struct Body {
    Rank from, to;
    std::size_t bytes;
  };
  std::mt19937 random(seed);
  const auto any = [&](Rank below) { return static_cast<Rank>(random() % below); };
  std::vector<Body> all;
  for (unsigned i = 0; i < kBodies; ++i) {
    const Rank from = any(size);
    all.push_back({from, (from + 1 + any(size - 1)) % size, std::size_t{any(3)} * 20'001});
  }
  spawn(
      size, 20 * kSecond,
      [&](LaneRank& self) {
        ASSERT_TRUE(self.until_ready());
        std::mt19937 mine(seed * 100 + self.world.rank);
        std::vector<std::unique_ptr<Buffer>> buffers(kBodies);
        std::vector<unsigned> order;  // of the pairs, whose own bodies stay in order
        std::map<std::pair<Rank, Rank>, std::deque<unsigned>> bodies;
        std::size_t goes = 0, comes = 0;
        for (unsigned i = 0; i < kBodies; ++i) {
          if (all[i].from != self.world.rank && all[i].to != self.world.rank) continue;
          order.push_back(i);
          bodies[{all[i].from, all[i].to}].push_back(i);
          ++(all[i].from == self.world.rank ? goes : comes);
          buffers[i] = std::make_unique<Buffer>(self.device, all[i].bytes, all[i].from == self.world.rank ? i : 999);
        }
        std::shuffle(order.begin(), order.end(), mine);
        for (const unsigned slot : order) {
          auto& line = bodies[{all[slot].from, all[slot].to}];
          const unsigned i = line.front();
          line.pop_front();
          if (all[i].from == self.world.rank) {
            self.send(all[i].to, *buffers[i], i);
          } else {
            self.accept(all[i].from, *buffers[i], i);
          }
          if (mine() % 3 == 0) self.turn();
          if (mine() % 10 == 0) sleep_ms(1);
        }
        ASSERT_TRUE(self.until_over(goes, comes))
            << "seed " << seed << " of " << size << " ranks, rank " << self.world.rank << ": " << self.lane->failure();
        for (unsigned i = 0; i < kBodies; ++i) {
          EXPECT_TRUE(all[i].to != self.world.rank || buffers[i]->equals(i));
        }
      },
      seed);
}

TEST(NcclLane, DevicesDoNotWaitForEachOtherInWhateverOrderBodiesAreSentAndAccepted) {
  for (unsigned seed = 1; seed <= 40; ++seed) run_in_any_order(2 + seed % 4, seed);
}

TEST(NcclLane, AnErrorIsAFailureOfItsRankAndLeavesNoDeviceOfAnotherWaiting) {
  standin_nccl_fail(1, "group", 2, cuda::kNcclRemoteError);
  spawn(3, 2 * kSecond, [](LaneRank& self) {
    ASSERT_TRUE(self.until_ready());
    const Rank next = (self.world.rank + 1) % 3, previous = (self.world.rank + 2) % 3;
    const Buffer out(self.device, 50'000, 1), in(self.device, 50'000, 2);
    for (unsigned i = 0; i < 5; ++i) {
      self.send(next, out, i);
      self.accept(previous, in, i);
    }
    self.until([&] { return !self.lane->failure().empty(); }, 6 * kSecond);
    EXPECT_TRUE(self.lane->ready());
    EXPECT_FALSE(self.lane->moving());
    EXPECT_FALSE(self.lane->poll(self.told));
    if (self.world.rank == 1) {
      EXPECT_NE(self.lane->failure().find("remote process exited"), std::string::npos) << self.lane->failure();
    } else if (!self.lane->failure().empty()) {  // it had launched something with that rank
      EXPECT_NE(self.lane->failure().find("did not go on for 2 s"), std::string::npos) << self.lane->failure();
    }
  });
}

TEST(NcclLane, ClosesWithWhatIsUnderWay) {
  spawn(2, 20 * kSecond, [](LaneRank& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, 100'000, 1);
    if (self.world.rank == 0) self.send(1, buffer, 1);
    if (self.world.rank == 1) self.accept(0, buffer, 1);
    self.until([&] { return self.lane->moving(); });
    self.lane->close(kSecond);
    self.lane->close(kSecond);
  });
}

}  // namespace
}  // namespace casync::nccl::test
