// Ranks that have joined: they take part with zeros in what the others go on with, and keep what is their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <random>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

constexpr int kRanks = 3;

Signature allreduce(std::int64_t numel, const std::string& codec = "none", ReduceOp op = ReduceOp::average,
                    const std::string& topology = "auto") {
  Signature signature;
  signature.shape = {numel / 100, 100};
  signature.op = op;
  signature.dims = detail::concat("(", numel / 100, ", 100)");
  signature.compression = codec;
  signature.topology = topology;
  return signature;
}

int join(Session& session) {
  Signature signature;
  signature.kind = OpKind::join;
  signature.shape = {0, 1};
  const auto handle = session.submit(session.define("join", signature, "test"), nullptr, nullptr, 0, false);
  while (!session.wait(handle, 1'000'000'000)) {
  }
  const int last = static_cast<int>(session.take_result(handle).rows.at(0));
  session.collect(handle);
  return last;
}

std::vector<float> gradient(int rank, int step, std::int64_t numel) {
  std::mt19937 random(static_cast<unsigned>(rank * 100 + step));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(numel));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

/// A named way of an allreduce: small and eager, in partitions, around a ring.
struct Way {
  std::int64_t numel;
  const char* topology;
};

class JoinTest : public testing::TestWithParam<Way> {};

TEST_P(JoinTest, TheOthersGoOnAndDivideByAllRanks) {
  const auto [numel, topology] = GetParam();
  for (const int early : {0, 1, 2}) {
    for (const bool known : {false, true}) {
      spawn(kRanks, [&, numel = numel, topology = topology](Session& session) {
        const int rank = session.rank();
        for (const ReduceOp op : {ReduceOp::average, ReduceOp::sum}) {
          const std::string name = detail::concat("w", static_cast<int>(op));
          const Signature signature = allreduce(numel, "none", op, topology);
          const auto reduce = [&](int step) {
            const auto mine = gradient(rank, step, numel);
            std::vector<float> result(mine.size());
            run(session, session.define(name, signature, "test"), mine.data(), result.data());
            return result;
          };
          const auto expect = [&](const std::vector<float>& result, int step, const std::vector<int>& ranks) {
            std::vector<std::vector<float>> inputs;
            for (const int r : ranks) inputs.push_back(gradient(r, step, numel));
            for (std::size_t i = 0; i < result.size(); ++i) {
              float sum = 0;
              for (const auto& input : inputs) sum += input[i];
              ASSERT_NEAR(result[i], op == ReduceOp::average ? sum / kRanks : sum, 1e-5F) << "step " << step;
            }
          };
          const std::vector<int> all{0, 1, 2};
          std::vector<int> others;
          std::ranges::copy_if(all, std::back_inserter(others), [&](int r) { return r != early; });
          if (known) expect(reduce(0), 0, all);
          if (rank != early) {
            for (int step = 1; step < 4; ++step) expect(reduce(step), step, others);
          }
          EXPECT_NE(join(session), early);
          for (int step = 4; step < 6; ++step) expect(reduce(step), step, all);
        }
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, JoinTest,
                         testing::Values(Way{100, "auto"}, Way{100, "direct"}, Way{40'000, "ps"}, Way{40'000, "ring"},
                                         Way{300'000, "auto"}),
                         [](const auto& way) { return detail::concat(way.param.topology, way.param.numel); });

/// Of a codec with a residual, with state of its own, and with state that all ranks share. The reference is a job in
/// which the rank submits zeros instead, with nothing kept.
TEST(Join, KeepsWhatIsTheRanksOwn) {
  constexpr std::int64_t numel = 40'000;
  for (const char* codec : {"onebit", "terngrad(bits=2)", "dgc(ratio=0.05)", "tbq", "powersgd(rank=2, start_step=0)"}) {
    spawn(kRanks, [&](Session& session) {
      const int rank = session.rank();
      const auto registration = session.define("w", allreduce(numel, codec, ReduceOp::sum), "test");
      const auto reduce = [&](int step) {
        const auto mine = gradient(rank, step, numel);
        std::vector<float> result(mine.size());
        run(session, registration, mine.data(), result.data());
        return result;
      };
      for (int step = 0; step < 3; ++step) reduce(step);
      const auto residual = session.residual("w");
      const CodecState before = session.state("w");
      std::vector<float> last;
      if (rank > 0) {
        for (int step = 3; step < 6; ++step) last = reduce(step);
      }
      EXPECT_NE(join(session), 0) << codec;
      const CodecState after = session.state("w");
      if (rank == 0) {
        EXPECT_EQ(session.residual("w"), residual) << codec;
        ASSERT_EQ(after.arrays.size(), before.arrays.size());
        for (std::size_t i = 0; i < after.arrays.size(); ++i) {
          if (after.arrays[i].shared) continue;
          EXPECT_EQ(after.values[i], before.values[i]) << codec << ' ' << after.arrays[i].name;
        }
      }
      EXPECT_EQ(after.steps, 6U) << codec;
      // What ranks share is alike again, or their results would differ from here on.
      std::vector<float> shared;
      for (std::size_t i = 0; i < after.arrays.size(); ++i) {
        if (after.arrays[i].shared) shared.insert(shared.end(), after.values[i].begin(), after.values[i].end());
      }
      if (!shared.empty()) {
        Signature whole;
        whole.shape = {static_cast<std::int64_t>(shared.size()), 1};
        whole.op = ReduceOp::max;
        std::vector<float> most(shared.size());
        run(session, session.define("shared", whole, "test"), shared.data(), most.data());
        EXPECT_EQ(most, shared) << codec << ", rank " << rank;
      }
      const std::vector<float> result = reduce(6);
      Signature whole = allreduce(numel, "none", ReduceOp::max);
      std::vector<float> most(result.size());
      run(session, session.define("result", whole, "test"), result.data(), most.data());
      EXPECT_EQ(most, result) << codec << ", rank " << rank;
    });
  }
}

/// An allreduce that one rank alone submits ends when all others have joined: then that one is the last.
TEST(Join, SaysOnEveryRankWhichWasLast) {
  spawn(kRanks, [&](Session& session) {
    for (int turn = 0; turn < 2 * kRanks; ++turn) {
      const int last = turn % kRanks;
      std::vector<float> value(100, 1.0F);
      if (session.rank() == last) {
        run(session, session.define("w", allreduce(100, "none", ReduceOp::sum), "test"), value.data(), value.data());
        EXPECT_EQ(value, std::vector<float>(100, 1.0F));
      }
      EXPECT_EQ(join(session), last);
    }
  });
}

/// What was submitted before the join goes on, and what nobody else submits ends with zeros for the others.
TEST(Join, OutstandingOperationsEnd) {
  spawn(kRanks, [&](Session& session) {
    constexpr std::int64_t numel = 20'000;
    const std::string name = detail::concat("only ", session.rank());
    const auto registration = session.define(name, allreduce(numel, "none", ReduceOp::sum), "test");
    for (int turn = 0; turn < 3; ++turn) {
      const auto mine = gradient(session.rank(), turn, numel);
      std::vector<float> result(mine.size());
      const auto handle = session.submit(registration, mine.data(), result.data());
      join(session);
      while (!session.wait(handle, 1'000'000'000)) {
      }
      session.collect(handle);
      EXPECT_EQ(result, mine);
    }
  });
}

TEST(Join, RefusesWhatNeedsEveryRankAndGoesOn) {
  spawn(kRanks, [&](Session& session) {
    const int rank = session.rank();
    const auto gather = [&](std::int64_t rows) {
      Signature signature;
      signature.kind = OpKind::allgather;
      signature.dims = "(*,)";
      const std::vector<float> mine(static_cast<std::size_t>(rows), static_cast<float>(rank));
      const auto handle = session.submit(session.define("g", signature, "test"), mine.data(), nullptr, rows, false);
      while (!session.wait(handle, 1'000'000'000)) {
      }
      const auto result = session.take_result(handle);
      session.collect(handle);
      return std::accumulate(result.rows.begin(), result.rows.end(), std::int64_t{0});
    };
    EXPECT_EQ(gather(rank), 3);
    for (int turn = 0; turn < 3; ++turn) {
      if (rank != turn) {
        for (int again = 0; again < 2; ++again) {
          try {
            gather(1);
            ADD_FAILURE() << "an allgather without rank " << turn;
          } catch (const Mismatch& error) {
            EXPECT_TRUE(std::string(error.what()).starts_with("Allgather is not supported with Join at this time."))
                << error.what();
          }
        }
      }
      join(session);
      EXPECT_EQ(gather(rank + 1), 6) << "after the join all is as before";
    }
  });
}

TEST(Join, RefusesASubmitOfTheRankThatHasJoined) {
  spawn(2, [&](Session& session) {
    const auto registration = session.define("w", allreduce(100), "test");
    std::vector<float> values(100);
    if (session.rank() == 0) {
      Signature signature;
      signature.kind = OpKind::join;
      const auto handle = session.submit(session.define("join", signature, "test"), nullptr, nullptr);
      EXPECT_THROW(session.submit(registration, values.data(), values.data()), InvalidArgument);
      while (!session.wait(handle, 1'000'000'000)) {
      }
      session.collect(handle);
    } else {
      join(session);
    }
    run(session, registration, values.data(), values.data());
  });
}

}  // namespace
}  // namespace casync
