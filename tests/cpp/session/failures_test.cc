// What an error is about, in fields: every rank raises one that names the tensor and whom to blame, as the world
// counts.
#include <gtest/gtest.h>

#include <latch>
#include <mutex>
#include <optional>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

/// By rank, what the errors of the ranks were about.
class Found {
 public:
  explicit Found(int size) : facts_(static_cast<std::size_t>(size)) {}

  /// `call()` throws an `Expected`.
  template <typename Expected, typename Call>
  void expect(const Session& session, const Call& call) {
    try {
      call();
      ADD_FAILURE() << "rank " << session.rank() << " raised nothing";
    } catch (const Expected& error) {
      const std::lock_guard lock(mutex_);
      facts_[static_cast<std::size_t>(session.rank())] = error.facts;
    }
  }
  const ErrorFacts& of(Rank rank) const { return facts_[rank].value(); }

 private:
  std::mutex mutex_;
  std::vector<std::optional<ErrorFacts>> facts_;
};

Signature signature(std::int64_t rows) {
  Signature signature;
  signature.shape = {rows, 1};
  signature.compression = "none";
  signature.topology = "auto";
  return signature;
}

/// An allreduce of `rows` ones.
void allreduce(Session& session, const std::string& name, std::int64_t rows) {
  std::vector<float> values(static_cast<std::size_t>(rows), 1.0F);
  run(session, session.define(name, signature(rows), "failures_test.cc"), values.data(), values.data());
}

ErrorFacts facts(ErrorKind kind, std::uint32_t rank, std::uint32_t peer) {
  return {.kind = kind, .tensor = "w", .op = OpKind::allreduce, .rank = rank, .peer = peer};
}

TEST(Failures, AMismatchBlamesARankWithOtherTerms) {
  Found found(3);
  spawn(3, [&](Session& session) {
    const std::int64_t rows = session.rank() == 2 ? 7 : 5;
    found.expect<Mismatch>(session, [&] { allreduce(session, "w", rows); });
    EXPECT_NO_THROW(allreduce(session, "w", 5));
  });
  EXPECT_EQ(found.of(0), facts(ErrorKind::mismatch, 0, 2));
  EXPECT_EQ(found.of(1), facts(ErrorKind::mismatch, 1, 2));
  EXPECT_EQ(found.of(2), facts(ErrorKind::mismatch, 2, 0));
}

TEST(Failures, RanksAreThoseOfTheWorld) {
  Found found(2);
  spawn(
      2,
      [&](Session& session) {
        found.expect<Mismatch>(session, [&] { allreduce(session, "w", session.rank() + 3); });
        if (session.rank() == 1) {
          found.expect<InvalidArgument>(session, [&] {
            Signature wrong = signature(5);
            wrong.compression = "onebitt";
            session.define("w", wrong, "failures_test.cc");
          });
        }
      },
      [](int, SessionOptions& options) { options.world = {4, 6}; });
  EXPECT_EQ(found.of(0), facts(ErrorKind::mismatch, 4, 6));
  EXPECT_EQ(found.of(1),
            (ErrorFacts{.kind = ErrorKind::invalid_argument, .tensor = "w", .op = OpKind::allreduce, .rank = 6}));
}

TEST(Failures, AStallBlamesTheRankThatIsMissing) {
  Found found(2);
  std::latch ended(1);
  spawn(
      2,
      [&](Session& session) {
        if (session.rank() == 1) return ended.wait();
        found.expect<Timeout>(session, [&] { allreduce(session, "w", 5); });
        ended.count_down();
      },
      [](int, SessionOptions& options) { options.timeout_s = 0.3; });
  EXPECT_EQ(found.of(0), facts(ErrorKind::stalled, 0, 1));
}

TEST(Failures, AnAbortBlamesTheRankWhoseProgramFailed) {
  Found found(3);
  spawn(3, [&](Session& session) {
    if (session.rank() == 1) session.abort("rank 1: ValueError");
    found.expect<Aborted>(session, [&] { allreduce(session, "w", 5); });
  });
  for (const std::uint32_t rank : {0U, 1U, 2U}) {
    EXPECT_EQ(found.of(static_cast<int>(rank)), facts(ErrorKind::aborted, rank, 1));
  }
}

TEST(Failures, AShutdownIsNoFailureOfAProgram) {
  Found found(2);
  spawn(2, [&](Session& session) {
    if (session.rank() == 0) found.expect<Aborted>(session, [&] { allreduce(session, "w", 5); });
  });
  EXPECT_EQ(found.of(0), facts(ErrorKind::shut_down, 0, 1));
}

/// Its rank stops in the middle: nothing that it is sent is read any more, and it says nothing.
class Stopped final : public Transport {
 public:
  explicit Stopped(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}

  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::size_t head_bytes() const override { return inner_->head_bytes(); }
  void send_head(Rank, std::vector<std::byte>&&) override {}
  void send_body(Rank, std::span<const std::byte>, std::uint64_t) override {}
  void accept(Rank, std::span<std::byte>, std::uint64_t) override {}
  bool poll(TransportSink&) override { return false; }
  bool moving() const override { return false; }
  void wait(Nanoseconds timeout) override { inner_->wait(timeout); }
  void wake() override { inner_->wake(); }
  bool wakes() const override { return inner_->wakes(); }
  const TransportCounters& counters() const override { return inner_->counters(); }
  void flush(Nanoseconds) override {}
  void close(Nanoseconds patience) override { inner_->close(patience); }

 private:
  std::shared_ptr<Transport> inner_;
};

TEST(Failures, APeerThatIsLostIsNamed) {
  Found found(3);
  std::latch noticed(2);
  spawn(
      3,
      [&](Session& session) {
        if (session.rank() == 2) return noticed.wait();
        found.expect<PeerFailure>(session, [&] { allreduce(session, "w", 5); });
        noticed.count_down();
      },
      [](int, SessionOptions& options) {
        options.peer_timeout_s = 0.5;
        options.world = {3, 5, 9};
      },
      [](std::shared_ptr<Transport> inner) -> std::shared_ptr<Transport> {
        if (inner->rank() != 2) return inner;
        return std::make_shared<Stopped>(std::move(inner));
      });
  EXPECT_EQ(found.of(0), facts(ErrorKind::peer_silent, 3, 9));
  EXPECT_EQ(found.of(1), facts(ErrorKind::peer_silent, 5, 9));
}

TEST(Failures, APlanThatDoesNotFitIsAKindOfItsOwn) {
  Found found(1);
  GradientPlan none;
  none.partitions = 0;
  spawn(
      1, [&](Session& session) { found.expect<InvalidArgument>(session, [&] { allreduce(session, "w", 5); }); },
      [&](int, SessionOptions& options) { options.fixed_plans = {{"w", none}}; });
  EXPECT_EQ(found.of(0),
            (ErrorFacts{.kind = ErrorKind::unfit_plan, .tensor = "w", .op = OpKind::allreduce, .rank = 0}));
}

TEST(Failures, AStallIsLoggedWithRanksOfTheWorld) {
  std::latch heard(1);
  LogRecord said;
  spawn(
      2,
      [&](Session& session) {
        if (session.rank() == 1) heard.wait();
        allreduce(session, "w", 5);
      },
      [](int, SessionOptions& options) {
        options.stall_warning_s = 0.1;
        options.world = {4, 6};
      },
      {},
      [&](const LogRecord& record) {
        said = record;
        heard.count_down();
      });
  EXPECT_EQ(said.level, LogLevel::warning);
  const std::map<std::string, LogRecord::Value> fields{
      {"event", "stall"}, {"tensor", "w"}, {"op", "allreduce"}, {"ranks", std::vector<std::int64_t>{6}}};
  EXPECT_EQ(said.fields, fields);
}

TEST(Failures, EveryKindHasAName) {
  for (const std::string_view name : kErrorKindName) EXPECT_FALSE(name.empty());
  EXPECT_EQ(name_of(ErrorKind::corrupt_payload), "corrupt_payload");
}

}  // namespace
}  // namespace casync
