// What every route must give, whatever its order of addition: the same bits on every rank; without a codec the sum of
// the contributions; with error feedback nothing lost. Routes that are linked into this program are among them.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "casync/error.hpp"
#include "casync/route.hpp"
#include "executor/virtual/world.hpp"

namespace casync {
namespace {

/// One gradient, of small whole numbers, so that sums are exact.
class Program final : public VirtualProgram {
 public:
  Program(std::uint32_t members, std::uint32_t steps, std::int64_t numel)
      : inputs_(static_cast<std::size_t>(steps) * members), outputs_(inputs_.size()), members_(members) {
    std::mt19937 random(7);
    for (auto& input : inputs_) {
      for (std::int64_t i = 0; i < numel; ++i) input.push_back(static_cast<float>(random() % 64) - 32);
    }
    for (auto& output : outputs_) output.resize(static_cast<std::size_t>(numel));
  }

  Buffers buffers(Rank rank, std::uint32_t step, std::uint32_t /*tensor*/) override {
    const std::size_t at = step * members_ + rank;
    return {inputs_[at].data(), outputs_[at].data()};
  }
  void ended(Rank rank, std::uint32_t step, std::uint32_t /*tensor*/, Operation& operation) override {
    EXPECT_EQ(operation.status, Status::ok) << "rank " << rank << ", step " << step;
  }

  const std::vector<float>& result(Rank rank, std::uint32_t step) const { return outputs_[step * members_ + rank]; }
  double sum(std::uint32_t step, std::size_t element) const {
    double sum = 0;
    for (Rank rank = 0; rank < members_; ++rank) sum += inputs_[step * members_ + rank][element];
    return sum;
  }

 private:
  std::vector<std::vector<float>> inputs_, outputs_;  // [step][rank]
  std::uint32_t members_;
};

struct Case {
  std::string route;
  std::string codec;
  std::vector<std::uint32_t> host_of;
  std::int64_t numel = 0;
  std::uint32_t partitions = 1;
  std::uint32_t steps = 3;
  std::uint32_t period = 1;
  std::uint32_t offset = 0;
  bool on_stream = false;
};

void check(const Case& what) {
  SCOPED_TRACE(detail::concat(what.route, ", ", what.codec, ", ", what.host_of.size(), " ranks on ",
                              what.host_of.back() + 1, " hosts, ", what.numel, " elements, steps ", what.offset, " of ",
                              what.period));
  const auto members = static_cast<std::uint32_t>(what.host_of.size());
  VirtualTensor tensor;
  tensor.name = "gradient";
  tensor.signature.op = ReduceOp::sum;
  tensor.signature.shape = {what.numel, 1};
  tensor.signature.compression = tensor.plan.codec = what.codec;
  tensor.plan.topology = what.route;
  tensor.plan.partitions = what.partitions;
  tensor.plan.first_owner = members / 2;
  tensor.plan.period = what.period;
  tensor.plan.offset = what.offset;
  VirtualScript script;
  script.tensors = {tensor};
  script.steps.assign(what.steps, std::vector<std::vector<Submission>>(members, {{0, 0, 0}}));
  script.on_stream.assign(members, what.on_stream);
  VirtualOptions options;
  options.network.host_of = what.host_of;
  Program program(members, what.steps, what.numel);
  VirtualWorld world(options, script, &program);
  const VirtualOutcome outcome = world.run();
  ASSERT_FALSE(outcome.hung) << outcome.waiting;

  const auto numel = static_cast<std::size_t>(what.numel);
  std::vector<double> lost(numel, 0);
  for (std::uint32_t step = 0; step < what.steps; ++step) {
    const std::vector<float>& result = program.result(0, step);
    for (Rank rank = 1; rank < members && numel > 0; ++rank) {
      EXPECT_EQ(std::memcmp(result.data(), program.result(rank, step).data(), numel * sizeof(float)), 0)
          << "rank " << rank << ", step " << step;
    }
    const bool is_divided = what.partitions >= what.period;
    if (members > 1 && !is_divided && step % what.period != what.offset) {
      EXPECT_EQ(std::ranges::count(result, 0.0F), what.numel) << "step " << step;
    }
    const bool is_dense = what.codec == "none" || what.codec == "fp16";
    if (members > 1 && is_divided && what.period > 1 && is_dense) {  // about as much of it in each step
      const auto numbers = static_cast<double>(what.numel - std::ranges::count(result, 0.0F));
      EXPECT_LE(numbers, static_cast<double>(what.numel) * (1.0 / what.period + 1.0 / what.partitions));
      EXPECT_GT(numbers, static_cast<double>(what.numel) * 0.9 / what.partitions);
    }
    for (std::size_t i = 0; i < numel; ++i) lost[i] += program.sum(step, i) - result[i];
  }
  for (std::size_t i = 0; i < numel && members > 1 && what.period > 1; ++i) {
    std::set<std::uint32_t> goes_in;
    for (std::uint32_t step = 0; step < what.steps; ++step) {
      if (program.result(0, step)[i] != 0.0F) goes_in.insert(step % what.period);
    }
    ASSERT_LE(goes_in.size(), 1U) << "element " << i << " goes in several steps of a period";
  }
  for (Rank rank = 0; rank < members; ++rank) {
    const GradientState* kept = world.kept(rank, "gradient");
    if (kept == nullptr) continue;
    for (const FloatArray& held : {kept->residual, kept->pending()}) {
      for (std::size_t i = 0; i < held.size(); ++i) lost[i] -= held[i];
    }
  }
  for (std::size_t i = 0; i < numel; ++i) ASSERT_NEAR(lost[i], 0, what.codec == "none" ? 0 : 1e-2) << "element " << i;
}

TEST(AnyRoute, GivesTheSameBitsAndLosesNothing) {
  std::set<std::string_view> carried;
  std::vector<std::string_view> routes = route_names();
  for (const std::string_view name : two_level_names()) routes.push_back(name);
  for (const std::string_view route : routes) {
    for (const char* spec : {"none", "onebit"}) {
      const CodecInfo codec = make_codec(spec)->info();
      for (const std::uint32_t members : {1U, 2U, 3U, 5U, 8U}) {
        Case what{std::string(route), spec, {}};
        for (std::uint32_t m = 0; m < members; ++m) what.host_of.push_back(m / 3);
        if (make_route(route)->why_unsupported({codec, ReduceOp::sum, what.host_of})) continue;
        carried.insert(route);
        for (const std::int64_t numel : {0, 1, 257, 3 * 4096 + 5}) {
          what.numel = numel;
          for (const std::uint32_t partitions : {1U, members + 1}) {
            what.partitions = partitions;
            check(what);
          }
        }
      }
    }
  }
  EXPECT_TRUE(carried.contains("tree"));
  EXPECT_GE(carried.size(), 8U);
}

TEST(AnyRoute, KeepsWhatItDoesNotSynchroniseForALaterStep) {
  for (const char* route : {"ps", "ring", "two_level"}) {
    for (const char* spec : {"none", "fp16", "onebit", "dgc(warmup_steps=0)", "adacomp"}) {
      for (const std::uint32_t members : {1U, 2U, 4U}) {
        Case what{route, spec, {}, 3 * 4096 + 5};
        for (std::uint32_t m = 0; m < members; ++m) what.host_of.push_back(m / 2);
        for (const std::uint32_t partitions : {3U, 1U, 7U}) {  // two are of fewer partitions than steps of a period
          what.partitions = partitions;
          for (const std::uint32_t period : {2U, 4U, 8U}) {
            what.period = period;
            what.steps = 2 * period + 1;
            for (what.offset = 0; what.offset < period; what.offset += period / 2) {
              for (const bool on_stream : {false, true}) {
                what.on_stream = on_stream;
                check(what);
              }
            }
          }
        }
      }
    }
  }
}

TEST(AnyRoute, AUsersGraphToo) {
  for (const char* spec : {"none", "onebit"}) {
    for (const std::int64_t numel : {0, 1, 257, 3 * 4096 + 5}) {
      for (const std::uint32_t partitions : {1U, 3U})
        check({"graph(3>1 4>1 1>0 2>0;0>4 4>3 3>2 2>1|0>1 1>2 2>3 3>4;4>0 4>1 4>2 4>3)",
               spec,
               {0, 0, 1, 1, 2},
               numel,
               partitions});
    }
  }
}

}  // namespace
}  // namespace casync
