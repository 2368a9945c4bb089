// What is counted in the workflows of a route is what was worked out by hand.
#include "planner/cost/route_costs.hpp"

#include "planner/plan_fixture.hpp"
#include "planner/statement.hpp"

namespace casync {
namespace {

using test::state_costs;
using test::Statement;

TEST(RouteCosts, AreThoseWorkedOutByHand) {
  for (std::uint32_t n = 2; n <= 9; ++n) {
    std::vector<std::uint32_t> unequal;
    for (std::uint32_t m = 0; m < n; ++m) unequal.push_back(m < 1 ? 0 : m < 4 ? 1 : 2);
    for (const auto& host_of : {separate_hosts(n), unequal}) {
      const World world(host_of);
      for (const char* spec : {"none", "fp16", "onebit"}) {
        const CodecInfo info = make_codec(spec)->info();
        for (const char* topology : {"direct", "ps", "ring", "two_level"}) {
          for (const std::uint32_t k : {1U, 3U, n, 2 * n, 2 * n + 1}) {
            const RouteCosts& counted = world.costs(topology, info, k);
            const double raw = info.identity ? 1 : 5;
            const Statement stated = state_costs(topology, host_of, k, 1, raw, info.identity);
            const std::string what =
                detail::concat(topology, ", ", spec, ", N ", n, ", K ", k, ", hosts ", host_of.back() + 1);
            if (std::string_view(topology) == "two_level" && world.hosts() < n) {
              // Who leads on a host, and for which partition, is not all in the statement: but for the network's bytes
              // it is a limit.
              EXPECT_LE(counted.hops, stated.hops) << what;
              EXPECT_NEAR(counted.host_payloads / k, stated.bytes - raw, 1e-9) << what;
              continue;
            }
            EXPECT_EQ(counted.hops, stated.hops) << what;
            EXPECT_NEAR((counted.rank_payloads + raw * counted.rank_raws) / k, stated.bytes, 1e-9) << what;
            EXPECT_EQ(counted.messages, stated.messages) << what;
            EXPECT_EQ(counted.encodes, stated.encodes) << what;
            EXPECT_EQ(counted.decodes, stated.decodes) << what;
          }
        }
      }
    }
  }
}

TEST(RouteCosts, OfACopyAreCountedOnce) {
  World world(separate_hosts(12));
  const CodecInfo info = make_codec("onebit")->info();
  const RouteCosts& before = world.costs("ps", info, 6);
  const World copy = world;
  EXPECT_EQ(&copy.costs("ps", info, 6), &before);
  const RouteCosts& counted = copy.costs("ring", info, 12);
  world.learn(copy);
  EXPECT_EQ(&world.costs("ring", info, 12), &counted);
  EXPECT_EQ(&world.costs("ps", info, 6), &before);
}

}  // namespace
}  // namespace casync
