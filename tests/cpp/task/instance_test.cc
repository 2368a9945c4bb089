// The counters of one run: nothing is ready before its memory and its predecessors, and every task exactly once.
#include "task/instance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "casync/error.hpp"

namespace casync {
namespace {

std::shared_ptr<const Template> template_of(Topology topology, std::uint32_t members, std::uint32_t partitions) {
  const auto codec = make_codec("onebit");
  WorkflowRequest request;
  request.shape = {64 * 4096, 1};
  request.codec = codec.get();
  request.topology = topology;
  request.partitions = partitions;
  for (std::uint32_t m = 0; m < members; ++m) request.host_of.push_back(m / 2);
  auto shape = std::make_shared<Template>(request);
  shape->codec = codec;
  return shape;
}

TEST(Instance, RunsEveryTaskOnceInAnyOrder) {
  std::mt19937 random(5);
  for (const Topology topology : {Topology::direct, Topology::parameter_server, Topology::ring, Topology::two_level}) {
    const auto shape = template_of(topology, 5, 7);
    for (int round = 0; round < 20; ++round) {
      Instance instance;
      instance.begin(shape);
      std::vector<std::uint32_t> ready, closed;
      std::vector<std::uint32_t> to_open(shape->workflow.partitions.size());
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
        if (instance.complete(task, ready)) closed.push_back(shape->workflow.tasks[task].partition);
        ++done;
      }
      EXPECT_EQ(done, shape->workflow.tasks.size());
      EXPECT_TRUE(instance.done());
      std::sort(closed.begin(), closed.end());
      EXPECT_EQ(closed.size(), shape->workflow.partitions.size());
      EXPECT_EQ(std::unique(closed.begin(), closed.end()), closed.end());
    }
  }
}

TEST(Instance, NothingRunsBeforeItsPartitionIsOpen) {
  Instance instance;
  instance.begin(template_of(Topology::ring, 4, 4));
  EXPECT_FALSE(instance.armed(0));
  EXPECT_EQ(instance.first_pending(), 0);
  std::vector<std::uint32_t> ready;
  EXPECT_THROW(instance.complete(0, ready), InternalError);
}

TEST(Template, FindsReceivesByPeerAndTag) {
  const auto shape = template_of(Topology::parameter_server, 4, 4);
  for (std::uint32_t t = 0; t < shape->workflow.tasks.size(); ++t) {
    const Task& task = shape->workflow.tasks[t];
    if (task.primitive == Primitive::recv) {
      EXPECT_EQ(shape->find_recv(task.peer, task.tag), t);
    }
  }
  EXPECT_EQ(shape->find_recv(3, 12345), -1);
}

}  // namespace
}  // namespace casync
