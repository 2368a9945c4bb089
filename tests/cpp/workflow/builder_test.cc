// Dependencies follow from buffers.
#include <gtest/gtest.h>

#include <limits>

#include "casync/error.hpp"
#include "casync/plan.hpp"
#include "casync/workflow_builder.hpp"

namespace casync {
namespace {

class BuilderTest : public testing::Test {
 protected:
  WorkflowRequest request() const {
    WorkflowRequest request;
    request.shape = {100, 1};
    request.codec = codec.get();
    request.host_of = {0, 1, 2};
    return request;
  }
  /// Tasks that `index` waits for, directly.
  static std::vector<std::uint32_t> before(const Workflow& workflow, std::uint32_t index) {
    std::vector<std::uint32_t> list;
    for (std::uint32_t t = 0; t < workflow.tasks.size(); ++t) {
      for (std::uint32_t s = 0; s < workflow.tasks[t].successor_count; ++s) {
        if (workflow.successors[workflow.tasks[t].first_successor + s] == index) list.push_back(t);
      }
    }
    return list;
  }
  using Tasks = std::vector<std::uint32_t>;

  std::shared_ptr<const Codec> codec = make_codec("none");
};

TEST(CutEvenly, AGradientThatFitsNoMemoryIsCutAllTheSame) {
  const auto codec = make_codec("none");
  const std::int64_t numel = std::numeric_limits<std::int64_t>::max() / 8;
  for (const std::uint32_t count : {1U, 3U, 166U, kPartitionLimit}) {
    const std::vector<Range> ranges = cut_evenly(*codec, {numel, 1}, count);
    ASSERT_EQ(ranges.size(), count);
    EXPECT_EQ(ranges.front().begin, 0);
    EXPECT_EQ(ranges.back().end, numel);
    for (const Range& range : ranges)
      EXPECT_NEAR(static_cast<double>(range.size()) * count / static_cast<double>(numel), 1, 1e-3);
  }
}

TEST_F(BuilderTest, AReaderFollowsTheWriter) {
  WorkflowBuilder builder(request());
  const Buffer slot = builder.payload_slot(0);
  builder.recv(0, 1, 0, slot);
  const Buffer sources[] = {slot};
  builder.compute(Primitive::decode, 0, sources, {.write_to = WorkflowBuilder::output()});
  const Workflow workflow = builder.finish();
  EXPECT_EQ(before(workflow, 1), (Tasks{0}));
  EXPECT_EQ(workflow.tasks[1].dependencies, 1U);
}

TEST_F(BuilderTest, AWriterFollowsTheReadersBeforeIt) {
  WorkflowBuilder builder(request());
  builder.send(0, 1, 0, WorkflowBuilder::input());
  builder.send(0, 2, 0, WorkflowBuilder::input());
  builder.recv(0, 1, 1, WorkflowBuilder::output());  // input and output may be the same memory
  EXPECT_EQ(before(builder.finish(), 2), (Tasks{0, 1}));
}

TEST_F(BuilderTest, MoreSlotsThanHaveANumberAreRefused) {
  WorkflowRequest many = request();
  many.shape = {40'000, 1};
  many.partitions = 40'000;
  WorkflowBuilder builder(many);
  const auto fill = [&] {
    for (std::uint32_t p = 0; p < builder.partitions(); ++p) builder.payload_slot(p);
  };
  fill();
  EXPECT_THROW(fill(), InvalidArgument);
}

TEST_F(BuilderTest, PartitionsDoNotWaitForEachOther) {
  WorkflowRequest two = request();
  two.partitions = 2;
  WorkflowBuilder builder(two);
  builder.send(0, 1, 0, WorkflowBuilder::input());
  builder.recv(1, 1, 1, WorkflowBuilder::output());
  EXPECT_TRUE(before(builder.finish(), 1).empty());
}

TEST_F(BuilderTest, ATaskThatReadsAndWritesInPlaceDoesNotWaitForItself) {
  WorkflowBuilder builder(request());
  const Buffer sources[] = {WorkflowBuilder::input()};
  builder.compute(Primitive::merge, 0, sources, {.write_to = WorkflowBuilder::output()});
  builder.send(0, 1, 0, WorkflowBuilder::output());
  const Workflow workflow = builder.finish();
  EXPECT_TRUE(before(workflow, 0).empty());
  EXPECT_EQ(before(workflow, 1), (Tasks{0}));
}

TEST_F(BuilderTest, RefusesAnEmptySlotAndATagUsedTwice) {
  WorkflowBuilder empty(request());
  EXPECT_THROW(empty.send(0, 1, 0, empty.payload_slot(0)), InternalError);
  WorkflowBuilder twice(request());
  twice.send(0, 1, 7, WorkflowBuilder::input());
  twice.send(0, 1, 7, WorkflowBuilder::input());
  EXPECT_THROW(twice.finish(), InternalError);
}

TEST_F(BuilderTest, CutsOnTheCodecsBoundariesAndReservesItsSlots) {
  const auto terngrad = make_codec("terngrad(bits=2)");
  WorkflowRequest cut = request();
  cut.shape = {10'000, 1};
  cut.codec = terngrad.get();
  cut.partitions = 5;
  WorkflowBuilder builder(cut);
  ASSERT_EQ(builder.partitions(), 2U);  // units of 4096: [0, 4096) and the rest, the empty pieces left out
  const Buffer slot = builder.payload_slot(0);
  builder.recv(0, 1, 0, slot);
  const Workflow workflow = builder.finish();
  EXPECT_EQ(workflow.partitions.back().end, 10'000);
  EXPECT_EQ(workflow.reserve[0], workflow.slots[slot.slot].bytes);
}

}  // namespace
}  // namespace casync
