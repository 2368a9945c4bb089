// What the planning hands out is run by the planner's thread alone, and nothing waits for it but the plans that need
// it.
#include <gtest/gtest.h>

#include "coordinator/make_policy.hpp"
#include "executor/driver.hpp"
#include "transport/local/local_transport.hpp"

namespace casync {
namespace {

constexpr std::int64_t kNumel = 100'000;  // none of the small operations, which keep their plan

struct Work final : PlanWork {
  explicit Work(bool of_costs) : changes_plans(of_costs) {}
  void run() override { ++runs; }
  bool changes_plans;
  int runs = 0;
};

/// Counts before the first plan of each tensor, and plans anew after each rank's costs.
class Plans final : public Planning {
 public:
  bool measuring() const override { return true; }
  std::optional<std::vector<std::byte>> costs(const Signature& /*signature*/, std::uint64_t submits) override {
    return submits == 2 ? std::optional(std::vector<std::byte>(1)) : std::nullopt;
  }
  void costs_of(std::uint32_t /*member*/, std::span<const std::byte> /*costs*/) override { wanted_ = true; }
  std::unique_ptr<PlanWork> work() override {
    return std::exchange(wanted_, false) ? std::make_unique<Work>(true) : nullptr;
  }
  std::unique_ptr<PlanWork> work_for(const std::string& /*name*/, const Signature& /*signature*/,
                                     std::uint32_t /*step*/) override {
    return std::exchange(counted_, true) ? nullptr : std::make_unique<Work>(false);
  }
  bool worked(PlanWork& work) override {
    const auto& done = dynamic_cast<Work&>(work);
    EXPECT_EQ(done.runs, 1);
    epoch_ += done.changes_plans ? 1 : 0;
    return done.changes_plans;
  }
  GradientPlan plan(const std::string& /*name*/, const Signature& /*signature*/, std::uint32_t /*step*/) override {
    GradientPlan plan;
    plan.epoch = epoch_;
    return plan;
  }
  std::optional<GradientPlan> re_plan(const std::string& name, const Signature& signature, const GradientPlan& current,
                                      std::uint32_t step) override {
    GradientPlan next = plan(name, signature, step);
    return next == current ? std::nullopt : std::optional(std::move(next));
  }

 private:
  bool wanted_ = false;
  bool counted_ = false;
  std::uint32_t epoch_ = 0;
};

/// Keeps what it is given until it is told to run it.
class Held final : public Workers {
 public:
  void run(std::vector<std::unique_ptr<Job>> batch) override {
    for (auto& job : batch) jobs.push_back(std::move(job));
  }
  void let_go(Driver& driver) {
    for (auto& job : std::exchange(jobs, {})) {
      std::string error = job->run();
      driver.finished(std::move(job), std::move(error));
    }
  }
  std::vector<std::unique_ptr<Job>> jobs;
};

/// The plan of each run, from what the Engine decides.
struct Begun final : Observer {
  void on_event(const Event& /*event*/, Nanoseconds /*now*/) override {}
  void on_decide(Nanoseconds /*now*/) override {}
  void on_return() override {}
  void on_action(const Action& action) override {
    if (const auto* const begin = std::get_if<action::Begin>(&action)) epochs.push_back(begin->plan.epoch);
  }
  std::vector<std::uint32_t> epochs;
};

/// A world of one rank.
class PlanWorkTest : public testing::Test {
 protected:
  void make(Workers* for_plans) {
    EngineOptions options;
    options.host_of = {0};
    engine.emplace(options, make_policy({}, 0, 1));
    driver.emplace(*engine, *transport, Driver::ComputeBackends{pool, for_plans}, plans,
                   Driver::Options{.observers = {&begun}},
                   Driver::Callbacks{.finished = [this](Operation&) { ++ended; },
                                     .report = [](const Stall&) {},
                                     .stand_in = [](const Request&) {}});
    definition.name = "w";
    definition.signature.shape = {kNumel, 1};
    driver->define(0, {definition.name, 0, definition.signature, "plan_work_test.cc"});
  }
  void submit() {
    operation.definition = &definition;
    operation.input = operation.output = values.data();
    operation.step = ++steps;
    driver->submit(0, &operation);
    go_on();
  }
  void go_on() {
    driver->turn(0);
    pool.let_go(*driver);
    driver->turn(0);
  }
  /// The planner's thread.
  void compute() {
    planner.let_go(*driver);
    go_on();
  }

  std::unique_ptr<Transport> transport = transport::connect_solo();
  Held pool;
  Held planner;
  Plans plans;
  std::optional<Engine> engine;
  std::optional<Driver> driver;
  Definition definition;
  Operation operation;
  std::vector<float> values = std::vector<float>(kNumel);
  std::uint64_t steps = 0;
  Begun begun;
  int ended = 0;
};

using Epochs = std::vector<std::uint32_t>;

TEST_F(PlanWorkTest, TheFirstPlanWaitsForIt) {
  make(&planner);
  submit();
  EXPECT_EQ(ended, 0);
  ASSERT_EQ(planner.jobs.size(), 1U);
  compute();
  EXPECT_EQ(ended, 1);
}

TEST_F(PlanWorkTest, ThePlansInUseStayUntilItIsBack) {
  make(&planner);
  submit();
  compute();
  for (int step = 0; step < 3; ++step) submit();
  EXPECT_EQ(begun.epochs, (Epochs{0, 0, 0, 0})) << "costs were told with the second";
  ASSERT_EQ(planner.jobs.size(), 1U);
  compute();
  for (int step = 0; step < 2; ++step) submit();
  EXPECT_EQ(begun.epochs, (Epochs{0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(ended, 6);
}

TEST_F(PlanWorkTest, WithoutAThreadForItItRunsAtOnce) {
  make(nullptr);
  for (int step = 0; step < 4; ++step) submit();
  EXPECT_EQ(begun.epochs, (Epochs{0, 1, 1, 1}));
}

TEST_F(PlanWorkTest, AFailureEndsTheSessionAndSaysSo) {
  make(&planner);
  submit();
  auto job = std::move(planner.jobs.front());
  planner.jobs.clear();
  driver->finished(std::move(job), "no memory");
  driver->turn(0);
  EXPECT_EQ(ended, 1);
  EXPECT_NE(operation.text.find("planning failed: no memory"), std::string::npos) << operation.text;
}

TEST_F(PlanWorkTest, WhatComesBackAfterAShutdownIsNobodys) {
  make(&planner);
  submit();
  driver->shutdown();
  driver->turn(0);
  EXPECT_EQ(ended, 1);
  compute();
  EXPECT_TRUE(begun.epochs.empty());
  EXPECT_EQ(operation.text.find("planning"), std::string::npos) << operation.text;
}

}  // namespace
}  // namespace casync
