// Operations that call back: once each, however they end, and never with anything held that the program could need.
#include "casync/completion.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <mutex>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

Signature signature(std::int64_t rows, OpKind kind = OpKind::allreduce) {
  Signature signature;
  signature.kind = kind;
  signature.op = ReduceOp::sum;
  signature.shape = {rows, 1};
  signature.compression = "none";
  signature.topology = "auto";
  return signature;
}

/// Counts what it is called for, by how it ended.
class Counted {
 public:
  explicit Counted(std::ptrdiff_t expected) : all_(expected) {}

  Completion one() {
    return [this](Outcome&& outcome) {
      called_.fetch_add(1);
      if (outcome.failure != nullptr) failed_.fetch_add(1);
      all_.count_down();
    };
  }
  void wait() { all_.wait(); }
  int called() const { return called_; }
  int failed() const { return failed_; }

 private:
  std::atomic<int> called_{0};
  std::atomic<int> failed_{0};
  std::latch all_;
};

std::string name_of(int i) { return detail::concat("w", i); }

void every_operation_once(int ranks, std::int64_t rows) {
  static constexpr int kOperations = 200;
  spawn(ranks, [&](Session& session) {
    Counted counted(kOperations);
    std::vector<std::vector<float>> values(kOperations, std::vector<float>(static_cast<std::size_t>(rows), 1.0F));
    for (int i = 0; i < kOperations; ++i) {
      auto& of = values[static_cast<std::size_t>(i)];
      const auto registration = session.define(name_of(i), signature(rows), "completion_test.cc");
      session.submit(registration, of.data(), of.data(), counted.one(), 0, i % 3 == 0 || i == kOperations - 1);
    }
    counted.wait();
    EXPECT_EQ(counted.called(), kOperations);
    EXPECT_EQ(counted.failed(), 0);
    for (const auto& of : values) {
      EXPECT_EQ(of, std::vector<float>(static_cast<std::size_t>(rows), static_cast<float>(ranks)));
    }
  });
}

TEST(Completion, IsCalledOnceForEachSmallOperation) {
  every_operation_once(1, 100);
  every_operation_once(2, 100);
  every_operation_once(3, 100);
}
TEST(Completion, IsCalledAfterALookThatFailed) {
  spawn(2, [](Session& session) {
    EXPECT_THROW(session.start_timeline("/nowhere/timeline.json", false), InvalidArgument);
    const auto w = session.define("w", signature(20'000), "completion_test.cc");
    std::vector<float> values(20'000, 1.0F);
    std::atomic<bool> called{false};
    session.submit(w, values.data(), values.data(), [&](Outcome&&) { called = true; });
    for (int i = 0; i < 5000 && !called; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(called) << "the background thread leaves progress to somebody who waits, and nobody does";
    if (!called) session.wait(called, 5'000'000'000);
  });
}
TEST(Completion, IsCalledOnceForEachLargeOperation) {
  every_operation_once(1, 20'000);
  every_operation_once(2, 20'000);
}

/// Submits its tensor again from its completion, until it was reduced `left` times.
struct Chain {
  Session& session;
  std::uint32_t registration;
  std::vector<float> values;
  int left;
  std::latch over{1};

  void submit() {
    session.submit(registration, values.data(), values.data(), [this](Outcome&& outcome) {
      EXPECT_EQ(outcome.failure, nullptr);
      if (--left > 0) return submit();
      over.count_down();
    });
  }
};

TEST(Completion, SubmitsTheSameTensorAgain) {
  for (const int ranks : {1, 2}) {
    spawn(ranks, [](Session& session) {
      const auto registration = session.define("w", signature(2), "completion_test.cc");
      Chain chain{session, registration, {0.0F, 0.0F}, 10'000};
      chain.submit();
      chain.over.wait();
      EXPECT_EQ(chain.left, 0);
    });
  }
}

/// Beside a chain, a thread that waits has the role most of the time, and hands it on.
TEST(Completion, IsCalledByAThreadThatWaitsForSomethingElse) {
  spawn(2, [](Session& session) {
    Chain chain{session, session.define("chain", signature(2), "completion_test.cc"), {0.0F, 0.0F}, 1'000};
    chain.submit();
    std::vector<float> values(30'000, 1.0F);
    const auto other = session.define("other", signature(30'000), "completion_test.cc");
    for (int step = 0; step < 50; ++step) run(session, other, values.data(), values.data());
    chain.over.wait();
  });
}

TEST(Completion, HasTheResultOfAGather) {
  spawn(2, [](Session& session) {
    Signature gather = signature(0, OpKind::allgather);
    const auto registration = session.define("g", gather, "completion_test.cc");
    const std::vector<float> rows(static_cast<std::size_t>(session.rank() + 1), 5.0F);
    Gathered gathered;
    std::latch over(1);
    session.submit(
        registration, rows.data(), nullptr,
        [&gathered, &over](Outcome&& outcome) {
          gathered = std::move(outcome.result);
          over.count_down();
        },
        session.rank() + 1);
    over.wait();
    EXPECT_EQ(gathered.bytes.size(), 3 * sizeof(float));
    EXPECT_EQ(gathered.rows, (std::vector<std::int64_t>{1, 2}));
  });
}

TEST(Completion, IsToldWhatCollectWouldThrow) {
  spawn(2, [](Session& session) {
    std::vector<float> values(7, 1.0F);
    const auto registration = session.define("w", signature(3 + session.rank()), "completion_test.cc");
    std::exception_ptr failure;
    std::latch over(1);
    session.submit(registration, values.data(), values.data(), [&failure, &over](Outcome&& outcome) {
      failure = std::move(outcome.failure);
      over.count_down();
    });
    over.wait();
    ASSERT_NE(failure, nullptr);
    try {
      std::rethrow_exception(failure);
    } catch (const Mismatch& error) {
      EXPECT_EQ(error.facts.tensor, "w");
      EXPECT_EQ(error.facts.rank, static_cast<std::uint32_t>(session.rank()));
      EXPECT_EQ(error.facts.peer, static_cast<std::uint32_t>(1 - session.rank()));
    }
  });
}

TEST(Completion, IsCalledOnceAfterAnAbort) {
  static constexpr int kOperations = 500;
  spawn(2, [](Session& session) {
    Counted counted(kOperations);
    std::vector<float> values(kOperations, 1.0F);
    for (int i = 0; i < kOperations; ++i) {
      if (i == kOperations / 2 && session.rank() == 1) session.abort("rank 1: ValueError");
      const auto registration = session.define(name_of(i), signature(1), "completion_test.cc");
      float* const value = &values[static_cast<std::size_t>(i)];
      session.submit(registration, value, value, counted.one());
    }
    counted.wait();
    EXPECT_EQ(counted.called(), kOperations);
    EXPECT_GT(counted.failed(), 0);
  });
}

TEST(Completion, IsCalledBeforeShutdownReturns) {
  static constexpr int kOperations = 100;
  spawn(2, [](Session& session) {
    Counted counted(kOperations);
    std::vector<float> values(kOperations, 1.0F);
    for (int i = 0; i < kOperations; ++i) {
      // No other rank submits these.
      const auto registration =
          session.define(detail::concat(session.rank(), '.', i), signature(1), "completion_test.cc");
      float* const value = &values[static_cast<std::size_t>(i)];
      session.submit(registration, value, value, counted.one(), 0, i % 2 == 0);
    }
    session.shutdown();
    EXPECT_EQ(counted.called(), kOperations);
    EXPECT_EQ(counted.failed(), kOperations);
    EXPECT_THROW(session.submit(0, values.data(), values.data(), counted.one()), Aborted);
    EXPECT_EQ(counted.called(), kOperations) << "what was refused is not called";
  });
}

/// A completion that goes on while the session ends: shutdown waits for it, and refuses what it submits.
TEST(Completion, IsWaitedForByShutdown) {
  spawn(1, [](Session& session) {
    struct State {
      Session& session;
      std::uint32_t registration;
      float value = 1;
      std::latch begun{1};
      std::atomic<bool> refused{false};
    } state{session, session.define("w", signature(1), "completion_test.cc")};
    session.submit(state.registration, &state.value, &state.value, [state = &state](Outcome&&) {
      state->begun.count_down();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      try {
        state->session.submit(state->registration, &state->value, &state->value, [](Outcome&&) { FAIL(); });
      } catch (const Aborted&) {
        state->refused = true;
      }
    });
    state.begun.wait();
    session.shutdown();
    EXPECT_TRUE(state.refused);
  });
}

TEST(Completion, MayNotWait) {
  spawn(1, [](Session& session) {
    const auto registration = session.define("w", signature(1), "completion_test.cc");
    const auto other = session.define("v", signature(1), "completion_test.cc");
    struct State {
      Session& session;
      Session::Handle handle;
      int refused = 0;
      std::latch over{1};

      void refuses(const std::function<void()>& call) {
        try {
          call();
        } catch (const InvalidArgument& error) {
          EXPECT_NE(std::string(error.what()).find("a completion cannot wait"), std::string::npos);
          ++refused;
        }
      }
    };
    std::vector<float> values(2, 1.0F);
    State state{session, session.submit(other, &values[0], &values[0])};
    session.submit(registration, &values[1], &values[1], [state = &state](Outcome&&) {
      Session& of = state->session;
      state->refuses([&] { of.wait(state->handle, 1); });
      state->refuses([&] { of.shutdown(); });
      state->refuses([&] { of.counters(); });
      state->refuses([&] { of.residual("w"); });
      of.metrics();
      of.poll(state->handle);
      state->over.count_down();
    });
    state.over.wait();
    EXPECT_EQ(state.refused, 4);
    while (!session.wait(state.handle, 1'000'000'000)) {
    }
    session.collect(state.handle);
  });
}

/// A completion of one session submits to another one.
TEST(Completion, SubmitsToAnotherSession) {
  SessionOptions options;
  options.number = 1;
  Session other(nullptr, options, [](const LogRecord&) {});
  spawn(1, [&](Session& session) {
    struct State {
      Session& other;
      std::uint32_t registration;
      float value = 3;
      std::latch over{1};
    } state{other, other.define("v", signature(1), "completion_test.cc")};
    float value = 1;
    session.submit(session.define("w", signature(1), "completion_test.cc"), &value, &value,
                   [state = &state](Outcome&&) {
                     state->other.submit(state->registration, &state->value, &state->value,
                                         [state](Outcome&&) { state->over.count_down(); });
                   });
    state.over.wait();
  });
}

TEST(Completion, OfAJoinNamesTheLastRank) {
  spawn(2, [](Session& session) {
    std::latch over(1);
    Gathered last;
    const auto join = session.define("join", signature(0, OpKind::join), "completion_test.cc");
    session.submit(join, nullptr, nullptr, [&last, &over](Outcome&& outcome) {
      last = std::move(outcome.result);
      over.count_down();
    });
    over.wait();
    EXPECT_EQ(last.rows.size(), 1u);
    float value = 1;
    run(session, session.define("w", signature(1), "completion_test.cc"), &value, &value);
    EXPECT_EQ(value, 2.0F);
  });
}

/// A stall is logged with no lock held: the log may ask the session.
TEST(Completion, AStallIsReportedAfterTheTurn) {
  std::latch heard(1);
  std::atomic<Session*> asked = nullptr;
  spawn(
      2,
      [&](Session& session) {
        const auto registration = session.define("w", signature(5), "completion_test.cc");
        if (session.rank() == 0) asked = &session;
        if (session.rank() == 1) heard.wait();
        std::vector<float> values(5, 1.0F);
        run(session, registration, values.data(), values.data());
      },
      [](int, SessionOptions& options) { options.stall_warning_s = 0.1; }, {},
      [&](const LogRecord&) {
        std::thread([&] { asked.load()->counters(); }).join();
        heard.count_down();
      });
}

}  // namespace
}  // namespace casync
