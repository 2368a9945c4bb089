// Plans against the workflows that are built from them.
#include "casync/workflow.hpp"

#include <random>

#include "planner/plan_fixture.hpp"

namespace casync {
namespace {

Workflow build(const Signature& signature, const GradientPlan& plan, const std::vector<std::uint32_t>& host_of,
               std::uint32_t member) {
  const auto codec = make_codec(plan.codec);
  WorkflowRequest request;
  request.kind = signature.kind;
  request.shape = signature.shape;
  request.dtype = signature.dtype;
  request.codec = codec.get();
  const auto route = make_route(plan.topology);
  request.route = route.get();
  request.partitions = plan.partitions;
  request.first_owner = plan.first_owner;
  request.member = member;
  request.host_of = host_of;
  return build_workflow(request);
}

/// Partitions whose contributions `workflow`'s member collects and completes.
std::uint32_t owned_by(const Workflow& workflow) {
  std::uint32_t owned = 0;
  for (const Task& task : workflow.tasks) owned += task.final && task.role == Role::owner ? 1 : 0;
  return owned;
}

TEST_F(PlanTest, EveryPlanCanBeBuilt) {
  std::mt19937 random(31);
  const std::vector<std::string> compressions{"none", "fp16",      "onebit",       "terngrad",
                                              "auto", "test_topk", "test_tworound"};
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t hosts[] = {1, 2, 3, 5};
    const std::uint32_t ranks[] = {1, 2, 3};
    host_of = shared_hosts(hosts[random() % 4], ranks[random() % 3]);
    if (round % 3 == 0) host_of.push_back(host_of.back());  // an unequal host
    const std::int64_t numel = static_cast<std::int64_t>(random() % (1U << (4 + random() % 20)));
    const Signature signature = gradient_of(numel, compressions[random() % compressions.size()]);
    const Decision decision = plan(signature);
    for (std::uint32_t member = 0; member < host_of.size(); ++member) {
      const Workflow workflow = build(signature, decision.plan, host_of, member);
      EXPECT_EQ(workflow.partitions.size(), numel == 0 ? 0 : decision.plan.partitions)
          << signature.compression << " " << numel << ": " << decision.plan.reason;
    }
    load = decision.load;
    load.bytes.clear();
  }
}

TEST_F(PlanTest, OwnersAreThoseOfTheWorkflow) {
  for (const auto& world : {separate_hosts(4), shared_hosts(2, 2), shared_hosts(3, 4), shared_hosts(4, 2)}) {
    host_of = world;
    load.bytes.assign(host_of.size(), 0);
    for (std::size_t m = 0; m < host_of.size(); ++m) load.bytes[m] = static_cast<double>(7 * m % 5) * 1e6;
    for (const std::int64_t numel : {20'000, 50'000, 300'000, 1'000'000}) {
      const Signature signature = gradient_of(numel);
      const Decision decision = plan(signature);
      const double partition = static_cast<double>(numel) * 4 / decision.plan.partitions;
      for (std::uint32_t member = 0; member < host_of.size(); ++member) {
        EXPECT_NEAR(decision.load.bytes[member] - load.bytes[member],
                    owned_by(build(signature, decision.plan, host_of, member)) * partition, 1e-3)
            << decision.plan.reason << " member " << member;
      }
    }
  }
}

TEST_F(PlanTest, CodecsOfSeveralRoundsTakeTheParameterServer) {
  options.direct_limit_bytes = options.flat_limit_bytes = 0;
  EXPECT_EQ(plan(gradient_of(1 << 20, "test_tworound")).plan.topology, "ps");
  host_of = shared_hosts(2, 2);
  EXPECT_EQ(plan(gradient_of(1 << 20, "test_tworound")).plan.topology, "two_level");
  for (const char* route : {"ring", "two_level"})
    EXPECT_EQ(plan(gradient_of(1 << 20, "test_tworound", route)).plan.topology, route);
}

}  // namespace
}  // namespace casync
