// Whatever is thrown in a turn ends the session, on every rank, and never the process: nobody waits for ever.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "coordinator/make_policy.hpp"
#include "executor/real/real_executor.hpp"
#include "transport/local/local_transport.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;
constexpr std::int64_t kNumel = 100'000;

/// Throws where `point` says: "event submit", "action begin", "decide"; once, or each time from then on.
class Thrower final : public Observer {
 public:
  Thrower(std::string point, bool again) : point_(std::move(point)), again_(again) {}
  void on_event(const Event& event, Nanoseconds /*now*/) override { at("event " + std::string(name_of(event))); }
  void on_decide(Nanoseconds /*now*/) override { at("decide"); }
  void on_action(const Action& action) override {
    if (point_.starts_with("action")) at("action " + describe(action));
  }
  bool has_thrown() const { return has_thrown_; }

 private:
  void at(const std::string& here) {
    if (!armed || (has_thrown_ ? !again_ : !here.starts_with(point_))) return;
    has_thrown_ = true;
    throw std::runtime_error("thrown at " + point_);
  }

 public:
  std::atomic<bool> armed{false};  // the first step is to be well

 private:
  std::string point_;
  bool again_;
  std::atomic<bool> has_thrown_{false};
};

class Plans final : public Planning {
 public:
  GradientPlan plan(const std::string& /*name*/, const Signature& /*signature*/, std::uint32_t /*step*/) override {
    GradientPlan plan;
    plan.partitions = 2;
    return plan;
  }
};

/// One rank, without a session around it.
class Member {
 public:
  Member(Rank rank, std::unique_ptr<Transport> transport, Thrower* thrower) {
    EngineOptions engine;
    engine.member = rank;
    engine.host_of = {0, 1};
    engine.heartbeat.timeout = 5 * kSecond;
    RealExecutor::Options options;
    if (thrower != nullptr) options.driver.observers = {thrower};
    const RealExecutor::Callbacks callbacks{
        .finished = [](Operation& operation) { operation.done.store(true, std::memory_order_release); },
        .stand_in = [](const Request&) {},
        .completed = [](Operation&) {},
        .report = [](const Stall&) {}};
    executor_ = std::make_unique<RealExecutor>(std::make_unique<Engine>(std::move(engine), make_policy({}, rank, 2)),
                                               std::move(transport), std::make_unique<Plans>(), options, callbacks);
  }
  ~Member() { executor_->shutdown(); }

  /// Submits one more tensor, `name`.
  Operation& submit(const std::string& name, std::int64_t numel) {
    Tensor& tensor = tensors_.emplace_back();
    tensor.definition.name = name;
    tensor.definition.signature.shape = {numel, 1};
    tensor.values.assign(static_cast<std::size_t>(numel), 1.0F);
    tensor.operation.definition = &tensor.definition;
    tensor.operation.input = tensor.operation.output = tensor.values.data();
    const auto registration = static_cast<std::uint32_t>(tensors_.size() - 1);
    executor_->define(registration, {name, 0, tensor.definition.signature, "thrown_test.cc"});
    executor_->submit(registration, &tensor.operation);
    executor_->advance(true);
    return tensor.operation;
  }
  /// How it ended; nothing: not in time.
  std::optional<Status> wait(const Operation& operation) {
    if (!executor_->wait(operation.done, 20 * kSecond)) return std::nullopt;
    return operation.status;
  }

 private:
  struct Tensor {
    Definition definition;
    std::vector<float> values;
    Operation operation;
  };
  std::deque<Tensor> tensors_;
  std::unique_ptr<RealExecutor> executor_;
};

class Thrown : public testing::TestWithParam<std::tuple<const char*, Rank, bool>> {};

TEST_P(Thrown, EndsTheSessionOnEveryRank) {
  const auto& [point, victim, again] = GetParam();
  Thrower thrower(point, again);
  transport::LocalWorld world(2);
  std::array<std::optional<Status>, 2> last;
  std::array<std::string, 2> why;
  std::latch is_well(2);
  const auto run = [&](Rank rank) {
    Member member(rank, world.connect(rank), rank == victim ? &thrower : nullptr);
    EXPECT_EQ(member.wait(member.submit("well", kNumel)), Status::ok);
    is_well.arrive_and_wait();
    if (rank == victim) thrower.armed = true;
    Operation* const several[] = {&member.submit("large", kNumel), &member.submit("small", 10)};
    for (Operation* const one : several) EXPECT_TRUE(member.wait(*one)) << "rank " << rank << " waits for ever";
    Operation& later = member.submit("later", kNumel);
    last[rank] = member.wait(later);
    why[rank] = later.text;
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  ASSERT_TRUE(thrower.has_thrown());
  for (const Rank rank : {0, 1}) {
    ASSERT_TRUE(last[rank]) << "rank " << rank << " waits for ever";
    EXPECT_NE(*last[rank], Status::ok) << "rank " << rank;
  }
  EXPECT_NE(why[victim].find(detail::concat("thrown at ", point)), std::string::npos) << why[victim];
  if (!again) {
    EXPECT_EQ(why[1 - victim], why[victim]);
  }
}

std::string name_of_case(const testing::TestParamInfo<Thrown::ParamType>& info) {
  std::string name = std::get<0>(info.param);
  std::ranges::replace(name, ' ', '_');
  return detail::concat(name, "_on_", std::get<1>(info.param), std::get<2>(info.param) ? "_again" : "");
}

INSTANTIATE_TEST_SUITE_P(Once, Thrown,
                         testing::Combine(testing::Values("event define", "event submit", "event control",
                                                          "event arrived", "event sent", "event received", "event ran",
                                                          "decide", "action begin", "action reserve", "action run",
                                                          "action send", "action accept", "action release",
                                                          "action finish", "action control"),
                                          testing::Values(Rank{0}, Rank{1}), testing::Values(false)),
                         name_of_case);
// What has failed cannot be ended in good order, either.
INSTANTIATE_TEST_SUITE_P(Again, Thrown,
                         testing::Combine(testing::Values("event submit", "event ran", "decide", "action finish"),
                                          testing::Values(Rank{1}), testing::Values(true)),
                         name_of_case);

}  // namespace
}  // namespace casync
