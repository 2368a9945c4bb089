#include <dirent.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "conformance.hpp"
#include "transport/mpi/environment.hpp"
#include "transport/mpi/mpi_transport.hpp"

// Run under mpirun: every process runs the same tests. A failure on one rank fails the job.
namespace casync::transport::test {
namespace {

using mpi::Environment;

int next_tag() {
  static int tag = 100;
  return tag++;
}

class ProcessWorld final : public World {
 public:
  explicit ProcessWorld(bool share_memory) : share_memory_(share_memory) {}

  casync::Rank size() const override { return Environment::get().size(); }
  bool same_host() const override {
    if (!share_memory_) return false;
    const auto& hosts = Environment::get().hosts();
    return std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
  }

  void run(const std::function<void(Rank&)>& body) override {
    Rank self(connect(next_tag()));
    body(self);
    self.finish();
  }

  void run_two(const std::function<void(Rank&, Rank&)>& body) override {
    const int tags[2] = {next_tag(), next_tag()};
    const int early = Environment::get().rank() % 2;
    std::unique_ptr<Transport> transports[2];
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      transports[1 - early] = connect(tags[1 - early]);
    });
    transports[early] = connect(tags[early]);
    other.join();
    Rank first(std::move(transports[0])), second(std::move(transports[1]));
    body(first, second);
    first.finish();
    second.finish();
  }

 private:
  std::unique_ptr<Transport> connect(int tag) const { return connect_mpi(tag, {}, share_memory_); }

  bool share_memory_;
};

std::shared_ptr<World> processes(bool share_memory) { return std::make_shared<ProcessWorld>(share_memory); }

INSTANTIATE_TEST_SUITE_P(Mpi, TransportConformance, testing::Values(processes(true), processes(false)),
                         [](const auto& world) { return std::string(world.index == 0 ? "OneHost" : "AsManyHosts"); });

std::size_t entries(const char* directory) {
  std::size_t count = 0;
  DIR* open = opendir(directory);
  while (readdir(open) != nullptr) ++count;
  closedir(open);
  return count;
}

std::size_t mapped_kilobytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4;
}

TEST(MpiTransport, AHundredConnectsLeakNothing) {
  const auto cycle = [] {
    Rank self(connect_mpi(next_tag()));
    self.barrier();
    self.close();
  };
  for (int i = 0; i < 5; ++i) cycle();
  const std::size_t descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  const std::size_t memory = mapped_kilobytes();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_LT(mapped_kilobytes(), memory + 32 * 1024) << "kB mapped, before: " << memory;
}

TEST(MpiTransport, SubsetsConnectAlone) {
  const Environment& world = Environment::get();
  if (world.size() < 3) GTEST_SKIP() << "needs three ranks";
  const int tag = next_tag();
  const std::vector<int> reversed{2, 0};  // session rank 0 is world rank 2
  if (world.rank() != 1) {
    if (world.rank() > 2) return;
    Rank self(connect_mpi(tag, reversed));
    EXPECT_EQ(self.rank(), world.rank() == 2 ? 0 : 1);
    EXPECT_EQ(self.size(), 2);
    self.finish();
  } else {
    EXPECT_THROW(connect_mpi(tag, reversed), std::exception) << "a session that this rank is not in";
  }
}

TEST(MpiTransport, ClosesWithinBoundsWhenPeersComeLate) {
  Rank self(connect_mpi(next_tag()));
  self.barrier();
  if (self.rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  self.close();
}

/// Only failures, with the rank in front; rank 0 prints everything as usual.
class FailurePrinter : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::cerr << "rank " << Environment::get().rank() << ": " << result.file_name() << ":" << result.line_number()
              << ": " << result.summary() << std::endl;
  }
};

}  // namespace
}  // namespace casync::transport::test

int main(int argc, char** argv) {
  using casync::transport::mpi::Environment;
  testing::InitGoogleTest(&argc, argv);
  if (Environment::get().rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new casync::transport::test::FailurePrinter);
  }
  const int status = RUN_ALL_TESTS();
  Environment::leave(status == 0);
  return status;
}
