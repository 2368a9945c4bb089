// Every registered codec over every topology that its rounds can take, at 1, 2, 3, 5 and 8 ranks: each rank's results,
// residuals and states are the reference's, bit for bit.
#include <gtest/gtest.h>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "executor/check.hpp"

namespace casync::test {
namespace {

constexpr int kSteps = 4;

/// Nothing, one element, a matrix smaller than a block, and several blocks with a rest.
const std::vector<Shape> kShapes{{0, 1}, {1, 1}, {257, 15}, {500, 67}};

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
  for (const std::string& codec : codec_names()) {
    for (const std::string& topology : topologies_of(codec)) {
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
