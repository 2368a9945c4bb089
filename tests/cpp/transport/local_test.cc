#include <thread>

#include "conformance.hpp"
#include "transport/local/local_transport.hpp"

namespace casync::transport::test {
namespace {

class ThreadWorld final : public World {
 public:
  explicit ThreadWorld(casync::Rank size) : size_(size) {}

  casync::Rank size() const override { return size_; }

  void run(const std::function<void(Rank&)>& body) override {
    LocalWorld world(size_);
    spawn([&](casync::Rank rank) {
      Rank self(world.connect(rank));
      body(self);
      self.finish();
    });
  }

  void run_two(const std::function<void(Rank&, Rank&)>& body) override {
    LocalWorld one(size_), two(size_);
    spawn([&](casync::Rank rank) {
      Rank first(one.connect(rank)), second(two.connect(rank));
      body(first, second);
      first.finish();
      second.finish();
    });
  }

 private:
  void spawn(const std::function<void(casync::Rank)>& rank_main) const {
    std::vector<std::thread> threads;
    for (casync::Rank rank = 0; rank < size_; ++rank) threads.emplace_back(rank_main, rank);
    for (std::thread& thread : threads) thread.join();
  }

  casync::Rank size_;
};

std::shared_ptr<World> threads(casync::Rank size) { return std::make_shared<ThreadWorld>(size); }

INSTANTIATE_TEST_SUITE_P(Local, TransportConformance,
                         testing::Values(threads(1), threads(2), threads(3), threads(5), threads(9)), world_name);

TEST(LocalWorld, KilledRankIsReportedOnceAfterItsHeads) {
  LocalWorld world(3);
  Rank zero(world.connect(0)), one(world.connect(1)), two(world.connect(2));
  std::vector<std::byte> body(100), in(100);
  two.transport->send_head(0, std::vector<std::byte>(body));
  two.transport->send_body(0, body, 1);
  zero.transport->send_body(2, body, 2);
  world.kill(2);
  zero.transport->accept(2, in, 3);
  for (int i = 0; i < 3; ++i) {
    zero.transport->poll(zero.told);
    one.transport->poll(one.told);
    two.transport->poll(two.told);
  }
  EXPECT_EQ(zero.told.heads[2].size(), 1u);
  ASSERT_EQ(zero.told.downs.size(), 1u);
  EXPECT_EQ(zero.told.downs[0].first, 2);
  EXPECT_EQ(one.told.downs.size(), 1u);
  EXPECT_TRUE(two.told.downs.empty());
  EXPECT_TRUE(zero.told.bodies.empty() && zero.told.sent.empty());
  zero.transport->send_head(1, std::vector<std::byte>(body));
  EXPECT_TRUE(one.until([&] { return one.told.heads[0].size() == 1; })) << "the others go on";
}

TEST(LocalWorld, StoppedRankLosesNothing) {
  LocalWorld world(2);
  Rank zero(world.connect(0)), one(world.connect(1));
  const std::vector<std::byte> head(10);
  std::vector<std::byte> body(10);
  world.stop(1);
  zero.transport->send_head(1, std::vector<std::byte>(head));
  one.transport->send_head(0, std::vector<std::byte>(head));
  one.transport->accept(0, body, 1);
  zero.transport->send_body(1, head, 1);
  EXPECT_FALSE(one.transport->poll(one.told));
  EXPECT_FALSE(zero.transport->poll(zero.told));
  world.resume(1);
  EXPECT_TRUE(one.until([&] { return one.told.heads[0].size() == 1 && one.told.bodies.size() == 1; }));
  EXPECT_TRUE(zero.until([&] { return zero.told.heads[1].size() == 1 && zero.told.sent.size() == 1; }));
  EXPECT_TRUE(zero.told.downs.empty());
}

TEST(LocalWorld, KillFromAnotherThreadEndsTheWait) {
  LocalWorld world(2);
  Rank zero(world.connect(0));
  std::thread script([&] { world.kill(1); });
  EXPECT_TRUE(zero.until([&] { return zero.told.downs.size() == 1; }));
  script.join();
}

TEST(SoloTransport, SleepsAndIsWoken) {
  Rank self(connect_solo());
  EXPECT_EQ(self.size(), 1);
  EXPECT_TRUE(self.transport->wakes());
  EXPECT_FALSE(self.transport->poll(self.told));
  EXPECT_THROW(self.transport->send_head(0, {}), std::exception) << "self-sends are not allowed";
}

}  // namespace
}  // namespace casync::transport::test
