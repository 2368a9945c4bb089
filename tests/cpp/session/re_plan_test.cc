// Plans from measured costs: the same new plan from the same run on, on every rank, in whatever order messages travel.
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <mutex>
#include <random>

#include "casync/error.hpp"
#include "coordinator/local_policy.hpp"
#include "engine/engine.hpp"
#include "planner/tune/measured_planning.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

Signature gradient_of(std::int64_t numel, std::string compression, DType dtype = DType::float32) {
  Signature signature;
  signature.dtype = dtype;
  signature.shape = {numel, 1};
  signature.dims = detail::concat("(", numel, ",)");
  signature.compression = std::move(compression);
  signature.topology = "auto";
  return signature;
}

/// Engines connected in memory, whose jobs and transfers take no time. Which link delivers next is drawn by lot.
class Engines {
 public:
  Engines(const std::vector<std::uint32_t>& host_of, std::uint32_t seed, bool re_plan = false)
      : random_(seed), link_(host_of.back() == 0 ? CostKind::intra : CostKind::inter), re_plan_(re_plan) {
    for (Rank m = 0; m < host_of.size(); ++m) ranks_.push_back(std::make_unique<Node>(*this, m, host_of));
  }

  std::uint32_t define(const std::string& name, const Signature& signature) {
    definitions_.push_back({name, 0, signature, "test"});
    for (auto& rank : ranks_) {
      for (const std::string& codec : rank->planning.define(name, signature)) rank->to_time.push_back(codec);
      rank->apply(event::Define{registrations_, definitions_.back()});
    }
    return registrations_++;
  }

  /// What `rank` has measured: everything a codec does, and the link, in seconds per byte.
  void measure(std::uint32_t rank, double codec, double link) {
    for (const std::string& spec : ranks_[rank]->to_time) {
      for (const CostKind kind : {CostKind::encode, CostKind::decode}) report(rank, kind, spec, codec);
    }
    report(rank, link_, "", link);
  }

  /// The root sees steps that take ten times as long as the first ones of its plans.
  void drift() {
    for (std::uint32_t step = 0; step <= TrialSchedule::kMostSteps; ++step)  // until ways are no longer compared
      ranks_[0]->planning.step_began(10'000'000 * (step + 1), true);
    for (std::uint32_t step = 0; step < Drift::kFirst + Drift::kSteps; ++step)
      ranks_[0]->planning.stepped({0.01, step < Drift::kFirst ? 0.01 : 0.1, 0});
  }

  void step() {
    std::vector<std::uint32_t> left(ranks_.size(), 0);
    while (true) {
      std::vector<std::function<void()>> possible;
      for (auto& [link, queue] : links_) {
        if (queue.empty()) continue;
        possible.emplace_back([this, to = link.second, &messages = queue] {
          const Message message = std::move(messages.front());
          messages.pop_front();
          message(*ranks_[to]);
        });
      }
      for (std::size_t m = 0; m < ranks_.size(); ++m) {
        if (left[m] == registrations_) continue;
        possible.emplace_back([this, m, &left] {
          const std::uint32_t registration = left[m]++;
          ranks_[m]->submit(registration, definitions_[registration].signature);
        });
      }
      if (possible.empty()) break;
      possible[random_() % possible.size()]();
    }
    for (const auto& rank : ranks_) ASSERT_FALSE(rank->engine.outstanding()) << "an operation did not end";
  }

  /// The plan with which `rank` began run `sequence`.
  const GradientPlan& plan(std::uint32_t rank, std::uint32_t registration, std::uint32_t sequence) const {
    return ranks_[rank]->begun.at({registration, sequence});
  }

 private:
  struct Node : ActionSink {
    Node(Engines& engines, Rank m, const std::vector<std::uint32_t>& host_of)
        : all(engines),
          member(m),
          engine(options(m, host_of),
                 std::make_unique<LocalPolicy>(m, static_cast<Rank>(host_of.size()), LocalPolicy::Options{})),
          planning(planning_options(host_of, engines.re_plan_), [](const LogRecord&) {}) {}

    static EngineOptions options(std::uint32_t m, const std::vector<std::uint32_t>& host_of) {
      EngineOptions options;
      options.member = m;
      options.host_of = host_of;
      return options;
    }
    static MeasuredPlanning::Options planning_options(const std::vector<std::uint32_t>& host_of, bool re_plan) {
      MeasuredPlanning::Options options;
      options.re_plan = re_plan;
      options.host_of = host_of;
      return options;
    }
    void apply(const Event& event) {
      engine.apply(event, 0, *this);
      engine.decide(0, *this);
      const auto plans = std::exchange(planned, {});
      if (!plans.empty()) apply(event::Planned{plans});
    }
    void submit(std::uint32_t registration, const Signature& signature) {
      const auto costs = planning.measuring() ? planning.costs(signature, ++submits[registration]) : std::nullopt;
      if (costs) apply(event::CostsKnown{*costs});
      apply(event::Submit{.registration = registration, .handle = registration, .steps = steps[registration]++});
    }
    void emit(const Action& action) override {
      std::visit([this](const auto& what) { on(what); }, action);
    }
    void on(const action::Begin& begin) { begun[{begin.handle, begin.sequence}] = begin.plan; }
    void on(const action::Run& run) {
      for (const auto& one : run.batch) {
        all.post(member, member, [one](Node& to) { to.apply(event::Ran{one.instance, one.task}); });
      }
    }
    void on(const action::Send& send) {
      all.post(member, member, [send](Node& to) { to.apply(event::Sent{send.instance, send.task}); });
      all.post(member, send.peer,
               [from = member, key = send.key](Node& to) { to.apply(event::Arrived{from, key, 0}); });
    }
    void on(const action::Accept& accept) {
      all.post(member, member, [accept](Node& to) { to.apply(event::Received{accept.instance, accept.task}); });
    }
    void on(const action::Control& control) {
      const Bytes bytes(control.message.begin(), control.message.end());
      all.post(member, control.peer, [from = member, bytes](Node& to) { to.apply(event::Control{from, bytes}); });
    }
    void on(const action::Finish& finish) { EXPECT_EQ(finish.failure, nullptr) << finish.failure->text; }
    void on(const action::PlanWanted& wanted) {
      for (const auto& [op, name, signature, current, step] : wanted.gradients) {
        planned.push_back({op, current ? planning.re_plan(name, signature, *current, step)
                                       : std::optional(planning.plan(name, signature, step))});
      }
    }
    void on(const action::CostsOf& told) {
      planning.costs_of(told.member, told.costs);
      if (const auto work = planning.work()) {
        work->run();
        EXPECT_TRUE(planning.worked(*work));
      }
    }
    template <typename Other>
    void on(const Other& /*memory, messages to nobody, texts*/) {}

    Engines& all;
    Rank member;
    Engine engine;
    MeasuredPlanning planning;
    std::vector<event::Planned::Plan> planned;
    std::map<std::uint32_t, std::uint64_t> submits;
    std::map<std::uint32_t, std::uint32_t> steps;
    std::vector<std::string> to_time;
    std::map<std::pair<std::uint32_t, std::uint32_t>, GradientPlan> begun;  // by registration and sequence
  };

  using Message = std::function<void(Node&)>;

  void post(Rank from, Rank to, Message message) { links_[{from, to}].push_back(std::move(message)); }
  void report(std::uint32_t rank, CostKind kind, const std::string& codec, double seconds_per_byte) {
    constexpr double kBytes = 1 << 20;
    ranks_[rank]->planning.measured({kind, codec, kBytes, seconds_per_byte * kBytes});
  }

  std::mt19937 random_;
  CostKind link_;
  bool re_plan_;
  std::vector<std::unique_ptr<Node>> ranks_;
  std::map<std::pair<Rank, Rank>, std::deque<Message>> links_;
  std::vector<Request> definitions_;
  std::uint32_t registrations_ = 0;
};

class RePlan : public testing::TestWithParam<std::uint32_t> {};

TEST_P(RePlan, TheNewPlanHoldsFromTheSameRunOnEverywhere) {
  constexpr std::uint32_t kMembers = 3;
  Engines engines({0, 1, 2}, GetParam());
  const auto open = engines.define("open", gradient_of(1 << 20, "auto(onebit)"));
  const auto other = engines.define("other", gradient_of(300'000, "auto(onebit)"));
  const auto named = engines.define("named", gradient_of(1 << 20, "onebit"));
  const auto small = engines.define("small", gradient_of(1000, "auto(onebit)"));
  for (int step = 0; step < 2; ++step) engines.step();
  for (std::uint32_t m = 0; m < kMembers; ++m) engines.measure(m, 20e-9, 0.05e-9);
  for (int step = 0; step < 4; ++step) engines.step();
  for (std::uint32_t m = 0; m < kMembers; ++m) {
    for (const auto registration : {open, other}) {
      EXPECT_EQ(engines.plan(m, registration, 0).codec, "none") << "one run for the links";
      EXPECT_EQ(engines.plan(m, registration, 1).codec, "onebit");
      EXPECT_EQ(engines.plan(m, registration, 5).codec, "none");
      for (std::uint32_t sequence = 0; sequence < 6; ++sequence) {
        EXPECT_EQ(engines.plan(m, registration, sequence), engines.plan(0, registration, sequence)) << "rank " << m;
      }
      EXPECT_EQ(engines.plan(m, registration, 2).epoch, 0U);
      EXPECT_EQ(engines.plan(m, registration, 4).epoch, 1U) << "all ranks have told within run 3";
      EXPECT_EQ(engines.plan(m, registration, 4), engines.plan(m, registration, 5)) << "frozen";
    }
    EXPECT_EQ(engines.plan(m, named, 5), engines.plan(0, named, 0));
    EXPECT_EQ(engines.plan(m, named, 5).codec, "onebit");
    EXPECT_EQ(engines.plan(m, small, 5), engines.plan(0, small, 0)) << "sent at once, so it keeps its plan";
  }
}

TEST_P(RePlan, ASlowLinkMakesItCompress) {
  Engines engines({0, 0}, GetParam());
  const auto open = engines.define("open", gradient_of(1 << 20, "auto(onebit)"));
  for (std::uint32_t m = 0; m < 2; ++m) engines.measure(m, 0.1e-9, m == 1 ? 50e-9 : 0.1e-9);
  for (int step = 0; step < 4; ++step) engines.step();
  for (std::uint32_t m = 0; m < 2; ++m) {
    EXPECT_EQ(engines.plan(m, open, 2).codec, "none") << engines.plan(m, open, 2).reason;
    EXPECT_EQ(engines.plan(m, open, 3).codec, "onebit") << engines.plan(m, open, 3).reason;
    EXPECT_EQ(engines.plan(m, open, 3).epoch, 1U) << "with one tensor all ranks have told before its run 3 is agreed";
  }
}

TEST_P(RePlan, WaitsForTheCostsOfEveryRank) {
  Engines engines({0, 1, 2}, GetParam());
  const auto open = engines.define("open", gradient_of(1 << 20, "auto(onebit)"));
  engines.measure(0, 20e-9, 0.05e-9);
  engines.measure(2, 20e-9, 0.05e-9);
  for (int step = 0; step < 6; ++step) engines.step();
  engines.measure(1, 20e-9, 0.05e-9);
  engines.step();
  for (std::uint32_t m = 0; m < 3; ++m) {
    EXPECT_EQ(engines.plan(m, open, 5).epoch, 0U);
    EXPECT_EQ(engines.plan(m, open, 6).epoch, 1U);
  }
}

TEST_P(RePlan, AfterADriftTheNextPlanHoldsFromTheSameRunOnEverywhere) {
  constexpr std::uint32_t kMembers = 3;
  constexpr std::uint32_t kAgain = 4 + MeasuredPlanning::kTellsEvery;  // all ranks tell their costs by then
  Engines engines({0, 1, 2}, GetParam(), true);
  const auto open = engines.define("open", gradient_of(1 << 20, "auto(onebit)"));
  const auto named = engines.define("named", gradient_of(1 << 20, "onebit"));
  for (std::uint32_t m = 0; m < kMembers; ++m) engines.measure(m, 20e-9, 0.05e-9);
  for (std::uint32_t step = 0; step < 10; ++step) engines.step();
  engines.drift();
  for (std::uint32_t m = 0; m < kMembers; ++m) {
    for (int i = 0; i < 300; ++i) engines.measure(m, 0.1e-9, 50e-9);  // what was measured before is forgotten
  }
  for (std::uint32_t step = 10; step < kAgain + 3; ++step) engines.step();
  for (std::uint32_t m = 0; m < kMembers; ++m) {
    EXPECT_EQ(engines.plan(m, open, 9).codec, "none");
    EXPECT_EQ(engines.plan(m, open, 9).epoch, 1U);
    EXPECT_EQ(engines.plan(m, open, kAgain - 2), engines.plan(m, open, 9)) << "until all ranks have told";
    EXPECT_EQ(engines.plan(m, open, kAgain + 2).codec, "onebit") << engines.plan(m, open, kAgain + 2).reason;
    EXPECT_EQ(engines.plan(m, open, kAgain + 2).epoch, 2U);
    EXPECT_EQ(engines.plan(m, named, kAgain + 2).codec, "onebit");
    EXPECT_EQ(engines.plan(m, named, kAgain + 2).epoch, 2U);
    for (std::uint32_t sequence = 0; sequence < kAgain + 3; ++sequence) {
      EXPECT_EQ(engines.plan(m, open, sequence), engines.plan(0, open, sequence)) << "rank " << m;
      EXPECT_EQ(engines.plan(m, named, sequence), engines.plan(0, named, sequence)) << "rank " << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, RePlan, testing::Range(0U, 20U));

// ---------------------------------------------------------------------------------------------------------------------
// Whole sessions

std::vector<float> values_of(int rank, std::int64_t numel, std::uint32_t step) {
  std::mt19937 random(step * 100 + static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(numel));
  for (float& value : values) value = normal(random);
  return values;
}

TEST(RePlanSession, ReplicasStayAlikeAndThePlanIsOfTheMeasuredEpoch) {
  constexpr int kSize = 3;
  constexpr std::uint32_t kSteps = 40;
  std::mutex mutex;
  std::vector<std::vector<float>> sums(kSize);
  std::vector<std::vector<std::pair<std::string, GradientPlan>>> plans(kSize);
  spawn(kSize, [&](Session& session) {
    const std::vector<std::uint32_t> registrations{
        session.define("big", gradient_of(400'000, "auto"), "test"),
        session.define("mid", gradient_of(50'000, "auto(terngrad(bits=2))"), "test"),
        session.define("named", gradient_of(50'000, "onebit"), "test")};
    std::vector<float> sum(400'000);
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      for (const auto registration : registrations) {
        auto values = values_of(session.rank(), registration == registrations.front() ? 400'000 : 50'000, step);
        run(session, registration, values.data(), values.data());
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
      }
    }
    const std::lock_guard lock(mutex);
    sums[static_cast<std::size_t>(session.rank())] = sum;
    plans[static_cast<std::size_t>(session.rank())] = session.plans();
  });
  for (const auto& sum : sums) EXPECT_EQ(sum, sums.front()) << "replicas differ";
  for (const auto& known : plans) {
    ASSERT_EQ(known, plans.front());
    ASSERT_EQ(known.size(), 3U);
    EXPECT_EQ(known[0].second.epoch, 1U) << known[0].second.reason;
    EXPECT_EQ(known[1].second.epoch, 1U) << known[1].second.reason;
    EXPECT_EQ(known[2].second.epoch, 0U);
    EXPECT_EQ(known[2].second.codec, "onebit");
  }
}

TEST(RePlanSession, AResidualJoinsTheFirstUncompressedInput) {
  constexpr int kSize = 3;
  constexpr std::int64_t kNumel = 20'000;
  spawn(kSize, [&](Session& session) {
    const auto compressed = session.define("w", gradient_of(kNumel, "onebit"), "test");
    const auto plain = session.define("w", gradient_of(kNumel, "none"), "test");
    std::vector<double> expected(kNumel);
    std::vector<double> delivered(kNumel);
    for (std::uint32_t step = 0; step < 5; ++step) {
      for (int rank = 0; rank < kSize; ++rank) {
        const auto values = values_of(rank, kNumel, step);
        for (std::size_t i = 0; i < values.size(); ++i) expected[i] += static_cast<double>(values[i]) / kSize;
      }
      const auto input = values_of(session.rank(), kNumel, step);
      std::vector<float> output(kNumel);
      run(session, step < 3 ? compressed : plain, input.data(), output.data());
      EXPECT_EQ(input, values_of(session.rank(), kNumel, step)) << "the user's input was written";
      for (std::size_t i = 0; i < output.size(); ++i) delivered[i] += static_cast<double>(output[i]);
    }
    EXPECT_TRUE(session.residual_names().empty());
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(delivered[i], expected[i], 1e-4) << "element " << i;
  });
}

TEST(RePlanSession, SixteenBitAndDoubleInputsTakeTheResidualToo) {
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float64}) {
    spawn(2, [&](Session& session) {
      const auto plain = session.define("w", gradient_of(5000, "none", dtype), "test");
      session.set_residual("w", std::vector<float>(5000, 3.0F));
      std::vector<std::byte> memory(5000 * size_of(dtype));
      run(session, plain, memory.data(), memory.data());
      const auto once = memory;
      // 3 in each format: 0x4200, 0x4040, 0x4008...
      const auto top = std::to_integer<int>(memory[size_of(dtype) - 1]);
      EXPECT_EQ(top, dtype == DType::float16 ? 0x42 : 0x40);
      run(session, plain, memory.data(), memory.data());
      EXPECT_EQ(memory, once) << "it was added twice";
    });
  }
}

TEST(RePlanSession, StartsFromSavedPlans) {
  GradientPlan saved;
  saved.codec = "fp16";
  saved.topology = "ring";
  saved.partitions = 3;
  saved.epoch = 1;
  saved.reason = "saved";
  spawn(
      2,
      [&](Session& session) {
        const auto open = session.define("w", gradient_of(100'000, "auto(onebit)"), "test");
        std::vector<float> values(100'000, 2.0F);
        for (int step = 0; step < 5; ++step) run(session, open, values.data(), values.data());
        EXPECT_EQ(values[99'999], 2.0F);
        EXPECT_EQ(*session.plan(open), saved);
        EXPECT_THROW(session.define("x", gradient_of(100'000, "auto"), "test"), InvalidArgument);
      },
      [&](int, SessionOptions& options) {
        options.fixed_plans = {{"w", saved}, {"x", saved}};
        options.fixed_plans.back().second.codec = "no-such-codec";
      });
}

}  // namespace
}  // namespace casync
