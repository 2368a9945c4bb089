// Graphs that users give: what they mean, and why one is refused.
#include <gtest/gtest.h>

#include "casync/error.hpp"
#include "casync/route.hpp"
#include "casync/workflow_builder.hpp"
#include "routes/contributions.hpp"

namespace casync {
namespace {

std::string refusal(std::string_view text) {
  try {
    make_route(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

GlobalGraph graph_of(const Route& route, const Codec& codec, std::uint32_t members, std::uint32_t partitions) {
  WorkflowRequest request;
  request.shape = {64 * 4096, 1};
  request.codec = &codec;
  request.route = &route;
  request.partitions = partitions;
  for (std::uint32_t m = 0; m < members; ++m) request.host_of.push_back(m);
  return GlobalGraph(request);
}

TEST(Graph, EveryContributionReachesEveryRankOnce) {
  const std::vector<std::pair<std::string, std::uint32_t>> graphs{
      {"graph(;)", 1},
      {"graph(1>0;0>1)", 2},
      {"graph(1>0 2>0 3>0;0>1 0>2 0>3)", 4},
      {"graph(1>2 2>3 3>0;0>1 1>2 2>3)", 4},
      {"graph(3>1 4>1 1>0 2>0;0>4 4>3 3>2 2>1)", 5},
      {"graph(1>0 2>0;0>1 0>2|0>2 1>2;2>1 1>0)", 3},
  };
  for (const auto& [text, members] : graphs) {
    const auto route = make_route(text);
    for (const char* spec : {"none", "onebit", "fp16"}) {
      for (const std::uint32_t partitions : {1U, 2U, 5U}) {
        const auto codec = make_codec(spec);
        const GlobalGraph graph = graph_of(*route, *codec, members, partitions);
        EXPECT_EQ(graph.fault(), "") << text << " " << spec;
        EXPECT_EQ(test::misrouted(graph), "") << text << " " << spec;
      }
    }
  }
}

TEST(Graph, PartitionsTakeTheGraphsInTurn) {
  const auto route = make_route("graph(1>0 2>0;0>1 0>2|0>2 1>2;2>1 1>0)");
  const std::vector<std::uint32_t> hosts{0, 1, 2};
  EXPECT_EQ(route->owners(hosts), (std::vector<Rank>{0, 2}));
  EXPECT_TRUE(route->merges_at_once());
  EXPECT_FALSE(make_route("graph(2>1 1>0;0>1 1>2)")->merges_at_once());
}

/// Member 1 sends what it has to member 0, which adds it twice and sends nothing back.
class Wrong final : public Route {
 public:
  std::string_view name() const override { return "wrong"; }
  std::vector<Phase> phases() const override { return {}; }
  std::optional<std::string> why_unsupported(const RouteRequest& /*request*/) const override { return std::nullopt; }
  std::vector<Rank> owners(std::span<const std::uint32_t> /*host_of*/) const override { return {}; }
  bool merges_at_once() const override { return true; }
  void build(WorkflowBuilder& builder) const override {
    if (builder.request().member == 1) {
      builder.send(0, 0, 0, WorkflowBuilder::input());
      return;
    }
    const Buffer received = builder.raw_slot(0);
    builder.recv(0, 1, 0, received);
    const Buffer sources[] = {WorkflowBuilder::input(), received, received};
    builder.compute(Primitive::merge, 0, sources, {.deliver = true, .write_to = WorkflowBuilder::output()});
  }
};

TEST(Graph, WhatCountsTwiceOrNeverIsSeen) {
  const auto none = make_codec("none");
  EXPECT_EQ(test::misrouted(graph_of(Wrong{}, *none, 2, 1)),
            "of partition 0 rank 0 gets rank 1's contribution 2 times; of partition 0 rank 1 gets rank 0's "
            "contribution 0 times; of partition 0 rank 1 gets rank 1's contribution 0 times; ");
}

TEST(Graph, IsRefusedByName) {
  EXPECT_NE(refusal("graph(1>0)").find("a semicolon"), std::string::npos);
  EXPECT_NE(refusal("graph(1-0;0>1)").find("'1-0' is no edge"), std::string::npos);
  EXPECT_NE(refusal("graph(1>0 x>0;0>1)").find("'x' is no rank"), std::string::npos);
  EXPECT_NE(refusal("graph(1>99999999999;0>1)").find("'99999999999' is no rank"), std::string::npos);
  EXPECT_NE(refusal("graph(1>1;0>1)").find("rank 1 sends to itself"), std::string::npos);
  EXPECT_NE(refusal("graph(1>0 1>2 2>0;0>1 0>2)").find("rank 1 sends its sum to rank 0 and to rank 2"),
            std::string::npos);
  EXPECT_NE(refusal("graph(1>0 0>1;0>1)").find("in a circle"), std::string::npos);
  EXPECT_NE(refusal("graph(1>0;0>1 0>2)").find("rank 0 and rank 2 both send their sums to nobody"), std::string::npos);
  EXPECT_NE(refusal("graph(1>2 2>1 3>0;0>1 0>2 0>3)").find("the contribution of rank 1 never reaches rank 0"),
            std::string::npos);
  EXPECT_NE(refusal("graph(1>0 2>0;0>1)").find("nobody sends rank 2 the result"), std::string::npos);
  EXPECT_NE(refusal("graph(1>0;0>1 1>0)").find("rank 0 makes the result"), std::string::npos);
  EXPECT_NE(refusal("graph(1>0 2>0;0>1 2>1 0>2)").find("rank 1 gets the result from rank 0 and from rank 2"),
            std::string::npos);
  EXPECT_NE(refusal("graph(1>0 2>0;1>2 2>1)").find("the result never reaches rank 1"), std::string::npos);
}

TEST(Graph, OfAnotherWorldDoesNotCarry) {
  const auto route = make_route("graph(1>0;0>1)");
  const std::vector<std::uint32_t> hosts{0, 1, 2};
  const auto none = make_codec("none");
  EXPECT_EQ(route->why_unsupported({none->info(), ReduceOp::average, hosts}),
            "the world has 3 ranks, and a graph of the topology 2");
}

}  // namespace
}  // namespace casync
