// The counters of one run: nothing is ready before its memory and its predecessors, and every task exactly once.
#include "task/instance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "casync/error.hpp"

namespace casync {
namespace {

std::shared_ptr<const TaskGraph> graph_of(const std::string& topology, std::uint32_t members, std::uint32_t partitions,
                                          const char* spec = "onebit") {
  const auto codec = make_codec(spec);
  WorkflowRequest request;
  request.shape = {64 * 4096, 1};
  request.codec = codec.get();
  request.route = make_route(topology).get();
  request.partitions = partitions;
  for (std::uint32_t m = 0; m < members; ++m) request.host_of.push_back(m / 2);
  auto graph = std::make_shared<TaskGraph>(request);
  graph->codec = codec;
  return graph;
}

TEST(Instance, RunsEveryTaskOnceInAnyOrder) {
  std::mt19937 random(5);
  for (const char* topology : {"direct", "ps", "ring", "two_level"}) {
    const auto graph = graph_of(topology, 5, 7);
    for (int round = 0; round < 20; ++round) {
      Instance instance;
      instance.begin(graph);
      std::vector<std::uint32_t> ready, closed;
      std::vector<std::uint32_t> to_open(graph->workflow.partitions.size());
      for (std::uint32_t p = 0; p < to_open.size(); ++p) to_open[p] = p;
      std::shuffle(to_open.begin(), to_open.end(), random);
      std::size_t done = 0;
      while (!ready.empty() || !to_open.empty()) {
        if (!to_open.empty() && (ready.empty() || random() % 4 == 0)) {
          instance.open_partition(to_open.back(), ready);
          to_open.pop_back();
          continue;
        }
        std::swap(ready[random() % ready.size()], ready.back());
        const std::uint32_t task = ready.back();
        ready.pop_back();
        ASSERT_TRUE(instance.armed(task));
        if (instance.complete(task, ready)) closed.push_back(graph->workflow.tasks[task].partition);
        ++done;
      }
      EXPECT_EQ(done, graph->workflow.tasks.size());
      EXPECT_TRUE(instance.done());
      std::sort(closed.begin(), closed.end());
      EXPECT_EQ(closed.size(), graph->workflow.partitions.size());
      EXPECT_EQ(std::unique(closed.begin(), closed.end()), closed.end());
    }
  }
}

TEST(Instance, NothingRunsBeforeItsPartitionIsOpen) {
  Instance instance;
  instance.begin(graph_of("ring", 4, 4));
  EXPECT_FALSE(instance.armed(0));
  std::vector<std::uint32_t> ready;
  EXPECT_THROW(instance.complete(0, ready), InternalError);
}

/// Completes what is ready, but no receive, until nothing is.
void run_without_the_others(Instance& instance) {
  std::vector<std::uint32_t> ready;
  for (std::uint32_t p = 0; p < instance.graph().workflow.partitions.size(); ++p) instance.open_partition(p, ready);
  while (!ready.empty()) {
    const std::uint32_t task = ready.back();
    ready.pop_back();
    if (instance.graph().workflow.tasks[task].primitive != Primitive::recv) instance.complete(task, ready);
  }
}

/// What `launch`, and then `complete`, of the first task of `primitive` make ready, as names.
std::pair<std::vector<std::string>, std::vector<std::string>> released(Instance& instance, Primitive primitive) {
  std::vector<std::uint32_t> ready;
  const auto& tasks = instance.graph().workflow.tasks;
  for (std::uint32_t p = 0; p < instance.graph().workflow.partitions.size(); ++p) instance.open_partition(p, ready);
  for (std::uint32_t t = 0; t < tasks.size(); ++t) {  // all messages are here
    if (tasks[t].primitive == Primitive::recv) instance.complete(t, ready);
  }
  const auto at = std::ranges::find(tasks, primitive, &Task::primitive);
  const auto task = static_cast<std::uint32_t>(at - tasks.begin());
  const auto names = [&] {
    std::vector<std::string> found;
    for (const std::uint32_t t : ready) found.emplace_back(name_of(tasks[t].primitive));
    ready.clear();
    return found;
  };
  ready.clear();
  if (instance.on_stream()) instance.launch(task, ready);
  auto by_launch = names();
  instance.complete(task, ready);
  return {std::move(by_launch), names()};
}

TEST(Instance, OnAStreamComputeTasksFollowALaunchAndTheHostWaits) {
  using Names = std::vector<std::string>;
  const auto graph = graph_of("direct", 2, 1);  // encode, then send to the other and merge with what came
  Instance instance;
  instance.begin(graph, false);
  EXPECT_EQ(released(instance, Primitive::encode), std::pair(Names{}, Names({"send", "merge"})));
  instance.begin(graph, true);
  EXPECT_EQ(released(instance, Primitive::encode), std::pair(Names{"merge"}, Names{"send"}));
}

TEST(Instance, OnAStreamALengthThatTheCodecChoosesIsWaitedFor) {
  Instance instance;
  instance.begin(graph_of("direct", 2, 1, "graddrop"), true);
  const auto [by_launch, by_end] = released(instance, Primitive::encode);
  EXPECT_TRUE(by_launch.empty());
  EXPECT_EQ(by_end.size(), 2U);
}

TEST(Instance, ALaunchComesOnceAndInTurn) {
  std::vector<std::uint32_t> ready;
  Instance instance;
  instance.begin(graph_of("direct", 2, 1), true);
  EXPECT_THROW(instance.launch(0, ready), InternalError) << "its partition has no memory";
  for (std::uint32_t p = 0; p < instance.graph().workflow.partitions.size(); ++p) instance.open_partition(p, ready);
  const std::uint32_t task = ready.front();
  instance.launch(task, ready);
  EXPECT_THROW(instance.launch(task, ready), InternalError);
  EXPECT_FALSE(instance.done(task));
  instance.begin(graph_of("direct", 2, 1), false);
  for (std::uint32_t p = 0; p < instance.graph().workflow.partitions.size(); ++p) instance.open_partition(p, ready);
  EXPECT_THROW(instance.launch(task, ready), InternalError) << "no stream";
}

TEST(Instance, TakesWhatItEncodedUntilTheResultIsThere) {
  // Member 0 of two: partition 0 is its own, of partition 1 it sends its contribution.
  Instance instance;
  instance.begin(graph_of("ps", 2, 2));
  EXPECT_TRUE(instance.taken().empty());
  run_without_the_others(instance);
  ASSERT_EQ(instance.taken().size(), 1U);
  const auto& tasks = instance.graph().workflow.tasks;
  EXPECT_EQ(tasks[instance.taken()[0]].primitive, Primitive::encode);
  EXPECT_EQ(tasks[instance.taken()[0]].partition, 1U);
  // The owner's merge encodes too, but it delivers what it encodes.
  for (std::uint32_t task = 0; task < tasks.size(); ++task) {
    if (tasks[task].primitive == Primitive::merge) instance.note(task);
  }
  EXPECT_TRUE(instance.delivered(0));
  EXPECT_EQ(instance.taken().size(), 1U);
  EXPECT_FALSE(instance.delivered(1));
  for (std::uint32_t task = 0; task < tasks.size(); ++task) {
    if (tasks[task].primitive == Primitive::decode) instance.note(task);
  }
  EXPECT_TRUE(instance.delivered(1));
  EXPECT_TRUE(instance.taken().empty());
}

TEST(TaskGraph, FindsReceivesByPeerAndTag) {
  const auto graph = graph_of("ps", 4, 4);
  for (std::uint32_t t = 0; t < graph->workflow.tasks.size(); ++t) {
    const Task& task = graph->workflow.tasks[t];
    if (task.primitive == Primitive::recv) {
      EXPECT_EQ(graph->find_recv(task.peer, task.tag), t);
    }
  }
  EXPECT_EQ(graph->find_recv(3, 12345), -1);
}

}  // namespace
}  // namespace casync
