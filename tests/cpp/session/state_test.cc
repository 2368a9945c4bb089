// What codecs keep of a gradient, in whole sessions: settled once, conserved, saved and put back, begun when it is
// time.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

using Floats = FloatArray;

constexpr std::int64_t kNumel = 20'000;
constexpr const char* kCodec = "test_state(gather=0)";

Floats gradient_of(int rank, std::uint32_t step, std::int64_t numel = kNumel) {
  std::mt19937 random(step * 1000 + static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(numel));
  for (float& value : values) value = normal(random);
  return values;
}

double mean_magnitude(const Floats& values) {
  double sum = 0;
  for (const float value : values) sum += std::abs(static_cast<double>(value));
  return sum / static_cast<double>(values.size());
}

/// The mean over ranks of a step's mean magnitudes.
double threshold_of(int size, std::uint32_t step) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += mean_magnitude(gradient_of(r, step));
  return sum / size;
}

Signature signature_of(const std::string& codec, Shape shape = {kNumel, 1}, const std::string& topology = "auto") {
  Signature signature;
  signature.shape = shape;
  signature.dims = detail::concat("(", shape.rows, ", ", shape.cols, ")");
  signature.compression = codec;
  signature.topology = topology;
  return signature;
}

const Floats& array_of(const CodecState& state, const std::string& name) {
  for (std::size_t i = 0; i < state.arrays.size(); ++i) {
    if (state.arrays[i].name == name) return state.values[i];
  }
  throw InternalError("there is no state array " + name);
}

/// Every rank's, kept until all are through.
template <typename T>
class PerRank {
 public:
  void put(int rank, T value) {
    const std::lock_guard lock(mutex_);
    values_[rank] = std::move(value);
  }
  const T& of(int rank) const { return values_.at(rank); }
  bool alike() const {
    for (const auto& [rank, value] : values_) {
      if (!(value == values_.begin()->second)) return false;
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<int, T> values_;
};

struct Case {
  int size;
  std::string codec;
  std::string topology;
};

class CodecStates : public testing::TestWithParam<Case> {};

TEST_P(CodecStates, AreSettledInTheFirstStepAndLoseNothing) {
  const auto [size, codec, topology] = GetParam();
  constexpr std::uint32_t kSteps = 4;
  PerRank<std::vector<Floats>> results;
  PerRank<CodecState> states;
  spawn(
      size,
      [&](Session& session) {
        const std::vector<std::string> names{"a", "b", "c"};  // settled at the same time
        std::vector<Floats> outputs;
        for (std::uint32_t step = 0; step < kSteps; ++step) {
          std::vector<Floats> gradients(names.size(), gradient_of(session.rank(), step));
          std::vector<Session::Handle> handles;
          for (std::size_t t = 0; t < names.size(); ++t) {
            const auto which = (t + static_cast<std::size_t>(session.rank())) % names.size();
            const auto registration = session.define(names[which], signature_of(codec, {kNumel, 1}, topology), "test");
            handles.push_back(session.submit(registration, gradients[which].data(), gradients[which].data()));
          }
          for (const auto handle : handles) {
            while (!session.wait(handle, 1'000'000'000)) {
            }
            session.collect(handle);
          }
          for (Floats& result : gradients) outputs.push_back(std::move(result));
        }
        results.put(session.rank(), outputs);
        states.put(session.rank(), session.state("a"));
        EXPECT_EQ(session.state_names().size(), session.size() > 1 ? 3U : 0U);
        EXPECT_GE(session.counters().residual_bytes, session.size() > 1 ? 3U * 2 * 4 * kNumel : 0U);
        EXPECT_TRUE(session.residual_names().empty());
      },
      [&](int, SessionOptions& options) {
        for (std::size_t m = 0; m < options.host_of.size() && topology == "two_level"; ++m)
          options.host_of[m] = static_cast<std::uint32_t>(m / 2);
      });
  EXPECT_TRUE(results.alike()) << "replicas differ";
  std::vector<double> left(kNumel, 0);
  for (int r = 0; r < size; ++r) {
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      const Floats gradient = gradient_of(r, step);
      for (std::size_t i = 0; i < left.size(); ++i) left[i] += static_cast<double>(gradient[i]);
    }
    if (size == 1) continue;  // the identity
    EXPECT_TRUE(states.of(r).agreed);
    EXPECT_NEAR(array_of(states.of(r), "tau")[0], threshold_of(size, 0), 1e-6);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] -= static_cast<double>(array_of(states.of(r), "v")[i]);
  }
  for (std::size_t i = 0; i < left.size(); ++i) {
    for (std::uint32_t step = 0; step < kSteps; ++step)
      left[i] -= static_cast<double>(results.of(0)[3 * step][i]) * size;  // of "a", whose state it is
    ASSERT_NEAR(left[i], 0, 1e-4) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, CodecStates,
                         testing::Values(Case{1, kCodec, "ps"}, Case{2, kCodec, "ps"}, Case{3, kCodec, "ps"},
                                         Case{4, kCodec, "two_level"}, Case{5, kCodec, "ps"}, Case{3, kCodec, "ring"},
                                         Case{3, kCodec, "direct"}, Case{4, "test_state(gather=1)", "auto"}),
                         [](const auto& test) {
                           return detail::concat(test.param.topology, test.param.size,
                                                 test.param.codec == kCodec ? "" : "_gather");
                         });

TEST(CodecState, IsNotSettledByAGradientThatIsNotFinite) {
  spawn(3, [](Session& session) {
    const auto registration = session.define("w", signature_of(kCodec), "test");
    Floats first = gradient_of(session.rank(), 0);
    if (session.rank() == 1) first[5000] = NAN;
    run(session, registration, first.data(), first.data());
    EXPECT_TRUE(std::isnan(first[5000]));
    EXPECT_FALSE(session.state("w").agreed);
    EXPECT_EQ(array_of(session.state("w"), "tau")[0], 0.0F);
    Floats second = gradient_of(session.rank(), 1);
    run(session, registration, second.data(), second.data());
    EXPECT_TRUE(session.state("w").agreed);
    EXPECT_NEAR(array_of(session.state("w"), "tau")[0], threshold_of(3, 1), 1e-6);
  });
}

TEST(CodecState, IsSettledAgainByAllWhereOneRankHasNone) {
  PerRank<float> thresholds;
  spawn(3, [&](Session& session) {
    const auto registration = session.define("w", signature_of(kCodec), "test");
    for (std::uint32_t step = 0; step < 3; ++step) {
      Floats values = gradient_of(session.rank(), step);
      run(session, registration, values.data(), values.data());
      if (step == 1 && session.rank() == 2) session.forget("w");
    }
    thresholds.put(session.rank(), array_of(session.state("w"), "tau")[0]);
  });
  EXPECT_TRUE(thresholds.alike());
  EXPECT_NEAR(thresholds.of(0), threshold_of(3, 2), 1e-6);
}

TEST(CodecState, ErrorsWhileItIsSettledNameTheTensor) {
  std::barrier through(3);
  spawn(3, [&](Session& session) {
    Floats values = gradient_of(session.rank(), 0);
    const auto wrong = session.define("w", signature_of(session.rank() == 1 ? kCodec : "onebit"), "train.py:7");
    EXPECT_THROW(run(session, wrong, values.data(), values.data()), Mismatch);
    const auto right = session.define("w", signature_of(kCodec), "train.py:8");
    run(session, right, values.data(), values.data());
    const auto other = session.define("other", signature_of(kCodec), "train.py:9");
    through.arrive_and_wait();
    if (session.rank() == 1) session.abort("rank 1 gives up");
    EXPECT_THROW(run(session, other, values.data(), values.data()), Aborted);
    EXPECT_FALSE(session.state("other").agreed);
  });
}

TEST(CodecState, KnowsTheOptimizer) {
  spawn(2, [](Session& session) {
    const auto registration = session.define("w", signature_of("test_state(gather=1)"), "test");
    const Floats first = gradient_of(session.rank(), 0);
    const Floats second = gradient_of(session.rank(), 1);
    Floats output(kNumel);
    run(session, registration, first.data(), output.data());
    session.set_optimizer(registration, 0.1F, 0.5F, false);
    run(session, registration, second.data(), output.data());
    const CodecState state = session.state("w");
    for (std::size_t i = 0; i < second.size(); ++i)
      ASSERT_EQ(array_of(state, "u")[i], 0.5F * first[i] + second[i]) << "element " << i;
  });
}

/// Steps `from` to `to` in a session of their own, payloads gathered; afterwards each rank's result and state.
struct Leg {
  PerRank<Floats> results;
  PerRank<CodecState> states;
};
void run_leg(Leg& leg, std::uint32_t from, std::uint32_t to, const std::function<void(Session&)>& restore) {
  spawn(3, [&](Session& session) {
    restore(session);
    Floats values;
    for (std::uint32_t step = from; step < to; ++step) {
      values = gradient_of(session.rank(), step);
      run(session, session.define("w", signature_of("test_state(gather=1)"), "test"), values.data(), values.data());
    }
    leg.results.put(session.rank(), values);
    leg.states.put(session.rank(), session.state("w"));
  });
}

TEST(CodecState, InterruptedAndResumedEqualsUninterrupted) {
  Leg all, first, second;
  run_leg(all, 0, 5, [](Session&) {});
  run_leg(first, 0, 2, [](Session&) {});
  run_leg(second, 2, 5, [&](Session& session) {
    const CodecState saved = first.states.of(session.rank());
    session.set_state("w", saved);
    EXPECT_EQ(session.state("w").values, saved.values) << "readable before its first use";
  });
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(second.states.of(r).steps, 5U);
    EXPECT_EQ(second.results.of(r), all.results.of(r));
    EXPECT_EQ(second.states.of(r).values, all.states.of(r).values);
  }
}

TEST(CodecState, PartOfItIsPutBackAndTheRestStartsAnew) {
  Leg first, second;
  run_leg(first, 0, 2, [](Session&) {});
  run_leg(second, 2, 3, [&](Session& session) {
    CodecState shared = first.states.of(0);
    ASSERT_TRUE(shared.arrays[2].shared);
    shared.arrays.erase(shared.arrays.begin(), shared.arrays.begin() + 2);
    shared.values.erase(shared.values.begin(), shared.values.begin() + 2);
    session.set_state("w", std::move(shared));
  });
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(array_of(second.states.of(r), "tau"), array_of(first.states.of(0), "tau")) << "settled already";
    EXPECT_EQ(array_of(second.states.of(r), "u"), gradient_of(r, 2)) << "without momentum u is the gradient";
  }
}

TEST(CodecState, OfAnotherLengthIsRefused) {
  spawn(2, [](Session& session) {
    CodecState state;
    state.codec = kCodec;
    state.arrays = {{.name = "v", .elements = 7, .per_element = true, .pending = true}};
    state.values = {Floats(7)};
    session.set_state("w", state);
    try {
      session.define("w", signature_of(kCodec), "test");
      FAIL() << "the state of another gradient was taken";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("tensor w"), std::string::npos) << text;
      EXPECT_NE(text.find("holds 7 values of 'v'"), std::string::npos) << text;
      EXPECT_NE(text.find("keeps 20000"), std::string::npos) << text;
    }
    session.forget("w");
    session.define("w", signature_of(kCodec), "test");
    EXPECT_THROW(session.set_state("w", state), InvalidArgument);
    state.arrays[0].name = "x";
    state.values[0].resize(kNumel);
    EXPECT_THROW(session.set_state("w", state), InvalidArgument);
  });
}

TEST(CodecState, IsNotForgottenUnderAnOperation) {
  std::barrier both(2);
  spawn(2, [&](Session& session) {
    const auto registration = session.define("w", signature_of("onebit"), "train.py:7");
    Floats values = gradient_of(session.rank(), 0);
    if (session.rank() == 1) both.arrive_and_wait();  // until then rank 0 waits for this rank
    const Session::Handle handle = session.submit(registration, values.data(), values.data());
    if (session.rank() == 0) {
      EXPECT_THROW(session.forget("w"), InvalidArgument);
      EXPECT_THROW(session.set_state("w", {}), InvalidArgument);
      EXPECT_THROW(session.set_residual("w", {}), InvalidArgument);
      both.arrive_and_wait();
    }
    while (!session.wait(handle, kLongestTime)) {
    }
    session.forget("w");  // though nobody has collected it
    session.collect(handle);
    EXPECT_TRUE(session.residual_names().empty());
  });
}

/// The codec of a gradient changes: what was held back goes on to the next one.
TEST(CodecState, WhatItHeldBackIsSentByTheNextCodec) {
  for (const std::string next : {"onebit", "none", "test_state(gather=1)", "fp16"}) {
    PerRank<Floats> before, after, outputs, second_outputs;
    spawn(2, [&](Session& session) {
      Floats values = gradient_of(session.rank(), 0);
      run(session, session.define("w", signature_of(kCodec), "test"), values.data(), values.data());
      outputs.put(session.rank(), values);
      values = gradient_of(session.rank(), 1);
      run(session, session.define("w", signature_of(next), "test"), values.data(), values.data());
      second_outputs.put(session.rank(), values);
      const CodecState state = session.state("w");
      Floats held(kNumel, 0.0F);
      if (next == "onebit") held = session.residual("w");
      if (next.starts_with("test_state")) held = array_of(state, "v");
      after.put(session.rank(), held);
    });
    for (std::size_t i = 0; i < static_cast<std::size_t>(kNumel); ++i) {
      double left = 0;
      for (int r = 0; r < 2; ++r) {
        left += static_cast<double>(gradient_of(r, 0)[i]) + static_cast<double>(gradient_of(r, 1)[i]);
        left -= static_cast<double>(after.of(r)[i]);
      }
      left -= 2 * (static_cast<double>(outputs.of(0)[i]) + static_cast<double>(second_outputs.of(0)[i]));
      ASSERT_NEAR(left, 0, next == "fp16" ? 1e-2 : 1e-4) << next << ", element " << i;
      if (i > 200) break;  // gradient_of is made anew for each element
    }
  }
}

/// Before its first step the codec's residual and state are as they were.
TEST(CodecState, ACodecThatBeginsLaterFindsWhatIsKeptAsItWas) {
  const Shape shape{100, 80};
  const std::string codec = "test_lowrank(start=3)";
  PerRank<Floats> results;
  spawn(3, [&](Session& session) {
    const auto registration = session.define("w", signature_of(codec, shape), "test");
    const Floats residual = gradient_of(10 + session.rank(), 0, shape.numel());
    const CodecState state{.codec = codec,
                           .steps = 0,
                           .arrays = {{.name = "q", .elements = 80, .shared = true}},
                           .values = {Floats(80, 2)}};
    session.set_residual("w", residual);
    session.set_state("w", state);
    Floats values;
    for (std::uint32_t step = 0; step < 3; ++step) {
      values = gradient_of(session.rank(), step, shape.numel());
      run(session, registration, values.data(), values.data());
      EXPECT_EQ(session.plan(registration)->codec, "none");
      EXPECT_EQ(session.plan(registration)->until, 3U);
      for (std::size_t i = 0; i < values.size(); i += 997) {
        double mean = 0;
        for (int r = 0; r < 3; ++r) mean += static_cast<double>(gradient_of(r, step, shape.numel())[i]) / 3;
        ASSERT_NEAR(values[i], mean, 1e-6) << "step " << step << " goes uncompressed";
      }
    }
    EXPECT_EQ(session.residual("w"), residual);
    EXPECT_EQ(session.state("w").values, state.values);
    values = gradient_of(session.rank(), 3, shape.numel());
    run(session, registration, values.data(), values.data());
    EXPECT_EQ(session.plan(registration)->codec, codec);
    EXPECT_EQ(session.plan(registration)->until, 0U);
    EXPECT_NE(session.residual("w"), residual);
    EXPECT_NE(session.state("w").values, state.values);
    results.put(session.rank(), values);
  });
  EXPECT_TRUE(results.alike());
}

TEST(CodecState, TheStepsBeforeACheckpointCount) {
  const Shape shape{100, 80};
  spawn(3, [&](Session& session) {
    const auto registration = session.define("w", signature_of("test_lowrank(start=9)", shape), "test");
    CodecState state;
    state.steps = 7;
    if (session.rank() == 1) session.set_state("w", state);  // who has none hears of it
    for (std::uint32_t step = 7; step < 11; ++step) {
      Floats values = gradient_of(session.rank(), step, shape.numel());
      run(session, registration, values.data(), values.data());
      EXPECT_EQ(session.plan(registration)->codec, step < 9 ? "none" : "test_lowrank(start=9)") << step;
      EXPECT_EQ(session.state("w").steps, step + 1);
    }
  });
}

TEST(CodecState, SmallGradientsBeginLaterToo) {
  // Uncompressed it is so small that it is sent unasked, and for that no rank would hear of the new plan.
  const Shape shape{10, 8};
  spawn(
      3,
      [&](Session& session) {
        const auto registration = session.define("w", signature_of("test_lowrank(start=5)", shape), "test");
        for (std::uint32_t step = 0; step < 8; ++step) {
          Floats values = gradient_of(session.rank(), step, shape.numel());
          run(session, registration, values.data(), values.data());
          EXPECT_EQ(session.plan(registration)->codec, step < 5 ? "none" : "test_lowrank(start=5)") << step;
        }
      },
      [](int, SessionOptions& options) { options.min_numel = 1; });
}

}  // namespace
}  // namespace casync
