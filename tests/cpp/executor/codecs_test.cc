// Every registered codec over every topology, at 1, 2, 3, 5 and 8 ranks: each rank's results, residuals and states are
// the reference's, bit for bit, and what was put in is in the results and the residuals.
#include <gtest/gtest.h>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "executor/check.hpp"

namespace casync::test {
namespace {

constexpr int kSteps = 4;

/// Nothing, one element, a matrix smaller than a block, and several blocks with a rest.
const std::vector<Shape> kShapes{{0, 1}, {1, 1}, {257, 15}, {500, 67}};

std::vector<std::string> codecs() {
  std::vector<std::string> names = codec_names();
  for (const char* also : {"powersgd(rank=2, start_step=0)", "dgc(ratio=0.05)", "test_lowrank(start=0)",
                           "test_tworound", "test_topk(ratio=0.05)", "test_state(gather=0)", "test_state(gather=1)"}) {
    names.emplace_back(also);
  }
  return names;
}

/// All ranks submit all tensors at once, in each step. Two hosts of unequal size from three ranks on.
Schedule schedule_of(const std::string& codec, const std::string& topology, int size, OpKind kind = OpKind::allreduce) {
  Schedule schedule;
  schedule.seed = static_cast<std::uint64_t>(size);
  schedule.size = size;
  for (int rank = 0; rank < size; ++rank) {
    const auto own = static_cast<std::uint32_t>(rank);
    schedule.options.network.host_of.push_back(topology == "two_level" ? own / 3 : own);
  }
  const auto made = make_codec(codec);
  for (const Shape& shape : kShapes) {
    VirtualTensor tensor;
    tensor.name = detail::concat("gradient ", shape.rows, " x ", shape.cols);
    tensor.signature.kind = kind;
    tensor.signature.shape = shape;
    tensor.signature.compression = tensor.plan.codec = made->applies(shape, 0) ? codec : "none";
    tensor.plan.topology = topology;
    tensor.plan.partitions = made->info().whole ? 1 : static_cast<std::uint32_t>(size);
    schedule.script.tensors.push_back(tensor);
    schedule.in_place.push_back(shape.rows % 2 == 0);
    schedule.nonfinite_step.push_back(-1);
  }
  std::vector<Submission> all;
  for (std::uint32_t t = 0; t < schedule.script.tensors.size(); ++t) all.push_back({t, 0, 0});
  schedule.script.steps.assign(kSteps, std::vector<std::vector<Submission>>(static_cast<std::size_t>(size), all));
  return schedule;
}

TEST(Codecs, AreTheReferencesOverEveryTopologyAndWorldSize) {
  for (const std::string& codec : codecs()) {
    for (const std::string& topology : kTopologies) {
      for (const int size : {1, 2, 3, 5, 8}) {
        const Verification shown = verify(schedule_of(codec, topology, size));
        for (const std::string& failure : shown.failures) {
          ADD_FAILURE() << codec << ", " << topology << ", " << size << " ranks: " << failure;
        }
        EXPECT_EQ(shown.operations, kShapes.size() * kSteps * static_cast<std::size_t>(size)) << codec;
      }
    }
  }
}

TEST(Codecs, SendWhatIsNotFiniteOverEveryTopologyAndTellOfIt) {
  for (const std::string& codec : codecs()) {
    for (const std::string& topology : kTopologies) {
      Schedule schedule = schedule_of(codec, topology, 5);
      schedule.nonfinite_step.assign(schedule.nonfinite_step.size(), 1);
      for (const std::string& failure : verify(schedule).failures)
        ADD_FAILURE() << codec << ", " << topology << ": " << failure;
    }
  }
}

TEST(Codecs, AreTheReferencesInAReducescatterOfEveryWorldSize) {
  int carried = 0;
  for (const std::string& codec : codec_names()) {
    if (!scatters(codec)) continue;
    ++carried;
    for (const int size : {1, 2, 3, 5, 8}) {
      const Verification shown = verify(schedule_of(codec, "ps", size, OpKind::reducescatter));
      for (const std::string& failure : shown.failures) {
        ADD_FAILURE() << codec << ", " << size << " ranks: " << failure;
      }
      EXPECT_EQ(shown.operations, kShapes.size() * kSteps * static_cast<std::size_t>(size)) << codec;
    }
  }
  EXPECT_GE(carried, 5);  // none, fp16, bf16, onebit, terngrad
}

}  // namespace
}  // namespace casync::test
