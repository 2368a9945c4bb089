// The virtual executor itself: time that adds up, seeds that repeat, faults that bite, and its speed.
#include <gtest/gtest.h>

#include <ctime>
#include <iostream>
#include <tuple>

#include "casync/error.hpp"
#include "executor/virtual/world.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;

VirtualTensor tensor_of(const std::string& name, std::int64_t numel, const std::string& codec,
                        const std::string& topology, std::uint32_t k) {
  VirtualTensor tensor;
  tensor.name = name;
  tensor.signature.shape = {numel, 1};
  tensor.signature.compression = codec;
  tensor.plan.codec = codec;
  tensor.plan.topology = topology;
  tensor.plan.partitions = k;
  return tensor;
}

/// `steps` steps in which every rank submits all tensors at once.
VirtualScript script_of(std::uint32_t members, std::vector<VirtualTensor> tensors, std::size_t steps = 1) {
  VirtualScript script;
  std::vector<Submission> all;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) all.push_back({t, 0, 0});
  script.steps.assign(steps, std::vector<std::vector<Submission>>(members, all));
  script.tensors = std::move(tensors);
  return script;
}

VirtualOptions sizes_only(std::uint32_t members) {
  VirtualOptions options;
  for (std::uint32_t m = 0; m < members; ++m) options.network.host_of.push_back(m);
  options.sizes_only = true;
  return options;
}

TEST(VirtualWorld, ATransferTakesItsBytesAndItsLatency) {
  // A ring of two with one partition: 4 MB to the owner and 4 MB back, one after the other.
  VirtualOptions options = sizes_only(2);
  options.network.between = {1e9, kMillisecond};
  options.workers.seconds_per_byte = 0;
  VirtualWorld world(options, script_of(2, {tensor_of("w", 1'000'000, "none", "ring", 1)}), nullptr);
  const VirtualOutcome outcome = world.run();
  EXPECT_FALSE(outcome.hung) << outcome.waiting;
  // 8 ms of bytes; messages on the way: agreement (2), credit (1), announcement and body (2 each, overlapping in part).
  EXPECT_GE(outcome.finished, 12 * kMillisecond);
  EXPECT_LE(outcome.finished, 15 * kMillisecond);
}

TEST(VirtualWorld, RanksOfAHostShareItsLink) {
  const auto time_of = [](std::vector<std::uint32_t> host_of) {
    VirtualOptions options = sizes_only(0);
    options.network.host_of = std::move(host_of);
    options.network.between = {1e9, 0};
    options.workers.seconds_per_byte = 0;
    VirtualWorld world(options, script_of(4, {tensor_of("w", 4'000'000, "none", "direct", 16)}), nullptr);
    return world.run().finished;
  };
  // Two ranks of a host send 16 MB twice each across its link; alone, each sends three times over a link of its own.
  EXPECT_NEAR(static_cast<double>(time_of({0, 0, 1, 1})), 64e6, 5e6);
  EXPECT_NEAR(static_cast<double>(time_of({0, 1, 2, 3})), 48e6, 3e6);
}

TEST(VirtualWorld, SmallMessagesTakeTheirBytesToo) {
  // 100 tensors of 2 kB directly to 7 others: 1.4 MB leave every rank inside heads, and 1.4 MB come, which takes 1.4
  // ms. Agreement takes two messages before that, the last message a third one's latency.
  std::vector<VirtualTensor> tensors;
  for (int t = 0; t < 100; ++t) tensors.push_back(tensor_of(detail::concat("w", t), 500, "none", "direct", 1));
  VirtualOptions options = sizes_only(8);
  options.network.between = {1e9, kMillisecond};
  options.workers.seconds_per_byte = 0;
  VirtualWorld world(options, script_of(8, std::move(tensors)), nullptr);
  const VirtualOutcome outcome = world.run();
  EXPECT_FALSE(outcome.hung) << outcome.waiting;
  EXPECT_GE(outcome.finished, 44 * kMillisecond / 10);
  EXPECT_LE(outcome.finished, 8 * kMillisecond);
}

TEST(VirtualWorld, ASeedRepeatsAndAnotherDoesNot) {
  const auto run = [](std::uint64_t seed) {
    VirtualOptions options = sizes_only(5);
    options.seed = seed;
    options.network.jitter = kMillisecond;
    VirtualWorld world(
        options,
        script_of(5, {tensor_of("a", 50'000, "onebit", "ps", 5), tensor_of("b", 70'000, "none", "ring", 10)}, 3),
        nullptr);
    const VirtualOutcome outcome = world.run();
    return std::pair(outcome.finished, outcome.turns);
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(VirtualWorld, AKilledRankEndsTheOthersWithItsName) {
  class Program : public VirtualProgram {
   public:
    Buffers buffers(Rank, std::uint32_t, std::uint32_t) override { return {data.data(), data.data()}; }
    void ended(Rank rank, std::uint32_t, std::uint32_t, Operation& operation) override {
      EXPECT_EQ(operation.status, Status::peer_failure);
      EXPECT_NE(operation.text.find("rank 1"), std::string::npos) << operation.text;
      ended_.push_back(rank);
    }
    std::vector<float> data = std::vector<float>(100'000);
    std::vector<int> ended_;
  } program;
  VirtualOptions options = sizes_only(3);
  options.sizes_only = false;
  VirtualScript script = script_of(3, {tensor_of("w", 100'000, "none", "ring", 3)});
  script.faults.push_back({.kind = Fault::Kind::kill, .at = 100'000, .rank = 1, .noticed = 0});
  VirtualWorld world(options, script, &program);
  EXPECT_FALSE(world.run().hung);
  EXPECT_FALSE(world.alive(1));
  EXPECT_EQ(program.ended_.size(), 2U);
}

/// The ranks' programs: each notes how its operations of the last step ended.
class LastStep final : public VirtualProgram {
 public:
  explicit LastStep(std::uint32_t step) : step_(step) {}
  Buffers buffers(Rank, std::uint32_t, std::uint32_t) override { return {data_.data(), data_.data()}; }
  void ended(Rank rank, std::uint32_t step, std::uint32_t, Operation& operation) override {
    if (step == step_) {
      ends.emplace_back(rank, operation.status, operation.text);
    } else {
      EXPECT_EQ(operation.status, Status::ok) << operation.text;
    }
  }
  std::vector<std::tuple<int, Status, std::string>> ends;

 private:
  std::uint32_t step_;
  std::vector<float> data_ = std::vector<float>(4096);
};

// Small tensors go unasked, so the others have begun what the rank that leaves never submits.
TEST(VirtualWorld, ARankThatLeavesEarlyEndsTheOthersWithItsName) {
  constexpr std::uint32_t kLast = 3;
  constexpr Nanoseconds kSecond = 1'000'000'000;
  for (const char* topology : {"direct", "ps", "ring"}) {
    for (const std::uint32_t owner : {0U, 1U}) {
      for (const int leaver : {0, 1, 2}) {
        for (const std::uint64_t seed : {1, 2, 3, 4}) {
          VirtualOptions options = sizes_only(3);
          options.sizes_only = false;
          options.seed = seed;
          options.network.jitter = kMillisecond;
          VirtualScript script = script_of(
              3, {tensor_of("a", 60, "none", topology, 1), tensor_of("b", 900, "none", topology, 1)}, kLast + 1);
          for (VirtualTensor& tensor : script.tensors) tensor.plan.first_owner = owner;
          script.steps[kLast][static_cast<std::size_t>(leaver)].clear();
          script.leave_after.assign(3, -1);
          script.leave_after[static_cast<std::size_t>(leaver)] = static_cast<Nanoseconds>(seed - 1) * kMillisecond;
          LastStep program(kLast);
          VirtualWorld world(options, script, &program);
          const VirtualOutcome outcome = world.run();
          const std::string where = detail::concat(topology, ", owner ", owner, ", rank ", leaver, ", ", seed);
          ASSERT_FALSE(outcome.hung) << where << ": " << outcome.waiting;
          EXPECT_EQ(program.ends.size(), 4U) << where;
          for (const auto& [rank, status, text] : program.ends) {
            EXPECT_EQ(status, Status::aborted) << where;
            EXPECT_NE(text.find(detail::concat("rank ", leaver, " has shut down")), std::string::npos) << text;
          }
          EXPECT_LE(outcome.finished, 2 * kSecond) << where;
        }
      }
    }
  }
}

// What asks no link for leave gives none back: messages that are too long for a head are counted, whatever the engine
// would like to send inside one.
TEST(VirtualWorld, ShortHeadsLeaveTheLinksTheirCredits) {
  for (const std::string coordinator : {"local", "global"}) {
    VirtualOptions options = sizes_only(3);
    options.network.head_bytes = 2048;
    options.coordinator.policy = coordinator;
    VirtualWorld world(
        options,
        script_of(3, {tensor_of("small", 1'000, "none", "direct", 1), tensor_of("large", 1'000'000, "none", "ring", 4)},
                  3),
        nullptr);
    const VirtualOutcome outcome = world.run();
    EXPECT_FALSE(outcome.hung) << coordinator << ": " << outcome.waiting;
  }
}

/// When `tensor` was through on all ranks in the last step, and when the step began.
class EndOf final : public VirtualProgram {
 public:
  EndOf(std::uint32_t tensor, std::uint32_t step) : tensor_(tensor), step_(step) {}
  Buffers buffers(Rank, std::uint32_t, std::uint32_t) override { return {}; }
  void ended(Rank, std::uint32_t step, std::uint32_t tensor, Operation&) override {
    if (step == step_ && tensor == tensor_) at = world->now();
  }
  const VirtualWorld* world = nullptr;
  Nanoseconds at = 0;

 private:
  std::uint32_t tensor_;
  std::uint32_t step_;
};

struct Times {
  Nanoseconds late = 0;  ///< from its submit to its end
  Nanoseconds step = 0;
};

/// Four hosts at 1 Gbit/s reduce 25 gradients of 4 MB, and one of 200 kB that comes 10 ms after them.
Times times_of(const std::string& coordinator, std::int32_t priority, std::size_t pool_bytes) {
  constexpr std::uint32_t kCount = 25;
  constexpr Nanoseconds kLate = 10 * kMillisecond;
  std::vector<VirtualTensor> tensors;
  for (std::uint32_t t = 0; t < kCount; ++t)
    tensors.push_back(tensor_of(detail::concat("large", t), 1'000'000, "none", "ps", 16));
  tensors.push_back(tensor_of("late", 50'000, "none", "ps", 4));
  tensors.back().signature.priority = priority;
  VirtualScript script = script_of(4, std::move(tensors), 2);  // the first step agrees on them
  for (auto& submissions : script.steps[1]) submissions.back().after = kLate;
  VirtualOptions options = sizes_only(4);
  options.network.between = {1.25e8, 50'000};
  options.engine.pool_bytes = pool_bytes;
  options.coordinator.policy = coordinator;
  EndOf end(kCount, 1);
  VirtualWorld world(options, std::move(script), &end);
  end.world = &world;
  const VirtualOutcome outcome = world.run();
  EXPECT_FALSE(outcome.hung) << outcome.waiting;
  const Nanoseconds began = outcome.step_ends[0];
  return {end.at - began - kLate, outcome.step_ends[1] - began};
}

/// Both ways it waits for what has memory already. Where all have memory it waits for what is on the link.
TEST(VirtualWorld, ALateGradientOfHighPriorityOvertakesWhatIsQueued) {
  struct Case {
    const char* coordinator;
    std::size_t pool_bytes;
    Nanoseconds at_most;
  };
  for (const auto& [coordinator, pool_bytes, at_most] :
       {Case{"local", kPoolBytes, 450 * kMillisecond}, Case{"local", 1 << 30, 200 * kMillisecond},
        Case{"global", kPoolBytes, 850 * kMillisecond}}) {
    const Times alike = times_of(coordinator, 0, pool_bytes);
    const Times first = times_of(coordinator, 1, pool_bytes);
    EXPECT_GE(alike.late, 1'150 * kMillisecond) << coordinator;
    EXPECT_LE(first.late, at_most) << coordinator;
    EXPECT_LE(first.step, alike.step + 20 * kMillisecond) << "nothing idles for it";
    std::cout << coordinator << ", pool of " << (pool_bytes >> 20) << " MiB: " << alike.late / kMillisecond
              << " ms without priorities, " << first.late / kMillisecond << " ms with them\n";
  }
}

TEST(VirtualWorld, AHangIsFoundAndSaysWhoWaits) {
  VirtualOptions options = sizes_only(2);
  options.ticks = false;  // nobody's heart beats, so nobody ever hears of the cut
  VirtualScript script = script_of(2, {tensor_of("w", 100'000, "none", "ring", 2)});
  script.faults.push_back({.kind = Fault::Kind::cut, .at = 0, .rank = 0, .peer = 1});
  VirtualWorld world(options, script, nullptr);
  const VirtualOutcome outcome = world.run();
  EXPECT_TRUE(outcome.hung);
  EXPECT_NE(outcome.waiting.find("rank 1 in step 0 waits for w"), std::string::npos) << outcome.waiting;
}

TEST(VirtualWorld, SixteenNodesAndFourHundredGradientsInAboutASecond) {
  std::vector<VirtualTensor> tensors;
  for (int t = 0; t < 400; ++t) {
    const std::int64_t numel = t % 2 == 0 ? 768 : t % 40 == 1 ? 2'400'000 : 590'000;  // as a transformer's
    const bool small = numel < 4096;
    tensors.push_back(
        tensor_of(detail::concat("g", t), numel, small ? "none" : "onebit", small ? "direct" : "ps", small ? 1 : 16));
  }
  VirtualWorld world(sizes_only(16), script_of(16, std::move(tensors)), nullptr);
  const std::clock_t begin = std::clock();
  const VirtualOutcome outcome = world.run();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_FALSE(outcome.hung) << outcome.waiting;
  std::cout << "16 nodes, 400 gradients, sizes only: " << seconds << " s of processor time for a step of "
            << static_cast<double>(outcome.finished) * 1e-9 << " s, " << outcome.turns << " turns\n";
#ifndef __SANITIZE_THREAD__
  EXPECT_LT(seconds, 30);  // sanitizers and a busy machine; the figure is the line above
#endif
}

}  // namespace
}  // namespace casync
