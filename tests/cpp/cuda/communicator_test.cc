// Communicators of ranks that are threads, each with a device of the stand-in, on the stand-in for NCCL.
#include "cuda/communicator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "casync/error.hpp"
#include "common/clock.hpp"
#include "cuda/standin_device.hpp"
#include "standin/nccl/standin_nccl.hpp"
#include "standin/standin.hpp"

namespace casync::cuda {
namespace {

using namespace test;

NcclId new_id() {
  NcclId id;
  EXPECT_EQ(standin_nccl().ncclGetUniqueId(&id), kNcclSuccess);
  return id;
}

Communicator::Part part(bool is_send, Rank peer, const Buffer& buffer) {
  return {is_send, peer, buffer.memory(), buffer.bytes()};
}

/// One rank, on its own thread.
struct Member {
  Member(const NcclId& id, Rank number, Rank ranks, Nanoseconds patience)
      : rank(number),
        size(ranks),
        device(standin(), static_cast<int>(number % 2)),
        current(device),
        comm(std::make_unique<Communicator>(standin_nccl(), device, id, number, ranks, patience, [this] { ++rings; })) {
  }

  bool until(const std::function<bool()>& done, Nanoseconds timeout = 20 * kSecond) const {
    for (const Nanoseconds begin = steady_now(); steady_now() < begin + timeout; sleep_ms(1)) {
      comm->advance();
      if (done()) return true;
    }
    return false;
  }
  bool until_ready() const {
    return until([this] { return comm->is_ready(); });
  }
  bool until_over() const {
    return until([this] { return comm->over() == comm->launched(); });
  }
  /// What is thrown within a time.
  std::string failure(Nanoseconds timeout = 20 * kSecond) const {
    try {
      until([] { return false; }, timeout);
    } catch (const DeviceFailure& thrown) {
      return thrown.what();
    }
    return "nothing";
  }

  Rank rank;
  Rank size;
  std::atomic<int> rings{0};
  Device device;
  Device::Current current;
  std::unique_ptr<Communicator> comm;
};

void spawn(Rank size, Nanoseconds patience, const std::function<void(Member&)>& body) {
  const NcclId id = new_id();
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Member self(id, rank, size, patience);
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(standin_nccl_comms(), 0);
}

TEST(Communicator, IsReadyWhenAllHaveCome) {
  const NcclId id = new_id();
  Member zero(id, 0, 2, 20 * kSecond);
  EXPECT_FALSE(zero.until([&] { return zero.comm->is_ready(); }, kSecond / 10));
  std::thread peer([&] {
    const Member one(id, 1, 2, 20 * kSecond);
    EXPECT_TRUE(one.until_ready());
    one.comm->end(20 * kSecond);
  });
  EXPECT_TRUE(zero.until_ready());
  zero.comm->end(20 * kSecond);
  peer.join();
}

TEST(Communicator, MovesWhatAGroupHolds) {
  for (const Rank size : {1U, 2U, 3U, 5U, 9U}) {
    spawn(size, 20 * kSecond, [&](Member& self) {
      ASSERT_TRUE(self.until_ready());
      for (const std::size_t bytes : {std::size_t{1}, std::size_t{16'384}, std::size_t{40'001}}) {
        std::vector<std::unique_ptr<Buffer>> out, in;
        std::vector<Communicator::Part> parts;
        for (Rank peer = 0; peer < size; ++peer) {
          out.push_back(std::make_unique<Buffer>(self.device, bytes, self.rank * 16 + peer));
          in.push_back(std::make_unique<Buffer>(self.device, bytes, 255));
          if (peer == self.rank) continue;
          parts.push_back(part(true, peer, *out.back()));
          parts.push_back(part(false, peer, *in.back()));
        }
        if (!parts.empty()) self.comm->launch(parts);
        ASSERT_TRUE(self.until_over());
        ASSERT_TRUE(self.until_ready());
        for (Rank peer = 0; peer < size; ++peer) {
          EXPECT_TRUE(peer == self.rank || in[peer]->equals(peer * 16 + self.rank));
        }
      }
      self.comm->end(20 * kSecond);
    });
  }
}

TEST(Communicator, AGroupIsOverWhenItsBytesAreThereAndRings) {
  standin_nccl_delay(50);
  spawn(2, 20 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer first(self.device, 100, 1), second(self.device, 100, 2);
    const Buffer in_first(self.device, 100, 3), in_second(self.device, 100, 4);
    const int before = self.rings;
    const auto launch = [&](const Buffer& out, const Buffer& in) {
      const std::vector parts{self.rank == 0 ? part(true, 1, out) : part(false, 0, in)};
      self.comm->launch(parts);
    };
    launch(first, in_first);
    ASSERT_TRUE(self.until_ready());
    launch(second, in_second);
    ASSERT_TRUE(self.until_ready());
    EXPECT_EQ(self.comm->over(), 0U);  // both are on the stream, and take 50 ms each
    ASSERT_TRUE(self.until([&] { return self.comm->over() == 1; }));
    EXPECT_TRUE(self.rank == 0 || in_first.equals(1));
    ASSERT_TRUE(self.until_over());
    EXPECT_TRUE(self.rank == 0 || in_second.equals(2));
    while (self.rings < before + 2) sleep_ms(1);
    self.comm->end(20 * kSecond);
  });
  standin_nccl_delay(0);
}

TEST(Communicator, CountsThatDifferAreAnErrorOnBothSides) {
  spawn(2, 20 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, self.rank == 0 ? 100 : 101, 1);
    const std::vector parts{self.rank == 0 ? part(true, 1, buffer) : part(false, 0, buffer)};
    self.comm->launch(parts);
    EXPECT_NE(self.failure().find("(NCCL 2.28.9) failed: invalid usage (says the stand-in)"), std::string::npos);
    EXPECT_NE(self.failure().find("was aborted: invalid usage"), std::string::npos) << "it says so each time";
  });
}

TEST(Communicator, AnErrorOfAGroupIsRaised) {
  standin_nccl_fail(1, "group", 2, kNcclRemoteError);
  spawn(2, 2 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, 100, 1);
    const std::vector parts{self.rank == 0 ? part(true, 1, buffer) : part(false, 0, buffer)};
    self.comm->launch(parts);
    ASSERT_TRUE(self.until_over());
    ASSERT_TRUE(self.until_ready());
    self.comm->launch(parts);
    EXPECT_NE(self.failure().find(self.rank == 1 ? "remote process exited" : "it did not go on for 2 s"),
              std::string::npos);
  });
}

TEST(Communicator, AnErrorOfACallIsRaisedByIt) {
  for (const char* const call : {"ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    standin_nccl_fail(0, call, 1, kNcclInvalidUsage);
    spawn(2, kSecond, [](Member& self) {
      ASSERT_TRUE(self.until_ready());
      const Buffer out(self.device, 100, 1), in(self.device, 100, 2);
      const std::vector parts{part(true, 1 - self.rank, out), part(false, 1 - self.rank, in)};
      if (self.rank == 0) {
        EXPECT_THROW(self.comm->launch(parts), DeviceFailure);
      } else {
        self.comm->launch(parts);
        EXPECT_NE(self.failure().find("it did not go on for 1 s"), std::string::npos);
      }
    });
  }
}

TEST(Communicator, ThatDoesNotBeginThrows) {
  standin_nccl_fail(0, "ncclCommInitRankConfig", 1, kNcclInvalidArgument);
  EXPECT_THROW(Member(new_id(), 0, 1, kSecond), DeviceFailure);
  EXPECT_EQ(standin_nccl_comms(), 0);
}

TEST(Communicator, ThatNotAllComeToIsAborted) {
  const Member zero(new_id(), 0, 2, kSecond / 2);
  EXPECT_NE(zero.failure().find("it did not go on for 0.5 s"), std::string::npos);
}

TEST(Communicator, ThatIsCondemnedSaysWhyEachTime) {
  spawn(1, 20 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    self.comm->condemn("the test has enough");
    EXPECT_NE(self.failure().find("was aborted: the test has enough"), std::string::npos);
    EXPECT_NE(self.failure().find("was aborted: the test has enough"), std::string::npos);
  });
}

TEST(Communicator, AnErrorOfTheDeviceEndsIt) {
  std::atomic<int> failures{0};
  standin_fail("cuEventRecord", 1, 214);  // of whichever rank is first
  spawn(2, kSecond, [&](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, 100, 1);
    const std::vector parts{self.rank == 0 ? part(true, 1, buffer) : part(false, 0, buffer)};
    self.comm->launch(parts);
    if (self.failure(3 * kSecond).find("cuEventRecord") != std::string::npos) {
      ++failures;
      EXPECT_NE(self.failure().find("was aborted: CUDA's cuEventRecord failed"), std::string::npos);
    }
    self.comm.reset();  // before the memory
  });
  EXPECT_EQ(failures, 1);
}

TEST(Communicator, IsLeftAloneByItsWatchdogWhereNobodyAdvancesIt) {
  spawn(2, kSecond / 2, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, 100, 1);
    const std::vector parts{self.rank == 0 ? part(true, 1, buffer) : part(false, 0, buffer)};
    self.comm->launch(parts);
    sleep_ms(1500);
    EXPECT_TRUE(self.until_over());
    self.comm->end(20 * kSecond);
  });
}

TEST(Communicator, EndsWhereAPeerDoesNot) {
  spawn(2, 20 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Nanoseconds begin = steady_now();
    if (self.rank == 0) self.comm->end(kSecond / 2);
    sleep_ms(self.rank == 1 ? 1000 : 0);
    EXPECT_LT(steady_now() - begin, 5 * kSecond);
  });
}

TEST(Communicator, ItsDestructorAbortsAGroupThatWaits) {
  spawn(2, 20 * kSecond, [](Member& self) {
    ASSERT_TRUE(self.until_ready());
    const Buffer buffer(self.device, 100, 1);
    if (self.rank == 0) self.comm->launch(std::vector{part(true, 1, buffer)});
    sleep_ms(50);
    self.comm.reset();
  });
}

TEST(Communicator, WhoseAbortHangsEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hang = [] {
    standin_nccl_hang_abort(1);
    const Member alone(new_id(), 0, 1, kSecond);
    alone.until_ready();
    alone.comm->condemn("the test has enough");
    sleep_ms(60'000);
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1),
              "casync: NCCL hangs, and does not end within 5 s of being told to \\(the test has enough\\)");
}

}  // namespace
}  // namespace casync::cuda
