// The members' workflows put together: every send meets its receive, and everything is delivered.
#include <gtest/gtest.h>

#include "casync/error.hpp"
#include "collectives/global_graph.hpp"
#include "routes/contributions.hpp"

namespace casync::test {
namespace {

constexpr std::int64_t kUnits = 360;  // a multiple of most K
constexpr std::int64_t kUnit = 4096;

struct Job {
  std::uint32_t members;
  std::uint32_t partitions;
  std::string topology;
  std::string codec;
  std::vector<std::uint32_t> host_of;
  std::uint32_t first_owner = 0;

  std::string print() const {
    std::string hosts;
    for (const std::uint32_t host : host_of) hosts += detail::concat(' ', host);
    return detail::concat(topology, ", ", codec, ", N ", members, ", K ", partitions, ", first owner ", first_owner,
                          ", hosts", hosts);
  }
  WorkflowRequest request(const Codec& of, std::int64_t numel = kUnits * kUnit) const {
    WorkflowRequest request;
    request.shape = {numel, 1};
    request.codec = &of;
    request.route = make_route(topology).get();
    request.partitions = partitions;
    request.first_owner = first_owner;
    request.host_of = host_of;
    return request;
  }
};

/// What an operation costs as built.
struct Built {
  std::uint32_t hops = 0;
  double bytes = 0;  ///< per direction, of the busiest member
  std::uint32_t messages = 0;
  std::uint32_t encodes = 0;
  std::uint32_t decodes = 0;
};
Built built(const GlobalGraph& graph) {
  Built built;
  std::vector<double> sent(graph.members().size(), 0), received(sent);
  for (std::size_t m = 0; m < sent.size(); ++m) {
    const Workflow& workflow = graph.members()[m];
    std::uint32_t messages = 0;
    for (std::size_t t = 0; t < workflow.tasks.size(); ++t) {
      const Task& task = workflow.tasks[t];
      const GlobalGraph::TaskFacts& facts = graph.facts(m, t);
      built.encodes = std::max(built.encodes, facts.encodes);
      built.decodes = std::max(built.decodes, facts.decodes);
      if (task.primitive != Primitive::send) continue;
      built.hops = std::max(built.hops, facts.sends_before + 1);
      ++messages;
      sent[m] += static_cast<double>(graph.bytes_of(workflow, task));
      received[task.peer] += static_cast<double>(graph.bytes_of(workflow, task));
    }
    built.messages = std::max(built.messages, messages);
  }
  for (std::size_t m = 0; m < sent.size(); ++m) built.bytes = std::max({built.bytes, sent[m], received[m]});
  return built;
}

constexpr std::array kCodecs{"none", "fp16", "onebit", "test_tworound", "test_lowrank", "test_topk(ratio=0.1)"};

/// Bytes per direction over the link of the busiest host.
double host_bytes(const GlobalGraph& graph, const std::vector<std::uint32_t>& host_of) {
  std::map<std::pair<std::uint32_t, bool>, double> across;  // (host, out)
  for (std::size_t m = 0; m < graph.members().size(); ++m) {
    const Workflow& workflow = graph.members()[m];
    for (const Task& task : workflow.tasks) {
      if (task.primitive != Primitive::send || host_of[m] == host_of[task.peer]) continue;
      const auto bytes = static_cast<double>(graph.bytes_of(workflow, task));
      across[{host_of[m], true}] += bytes;
      across[{host_of[task.peer], false}] += bytes;
    }
  }
  double most = 0;
  for (const auto& [link, bytes] : across) most = std::max(most, bytes);
  return most;
}

std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names = route_names();
  for (const std::string_view name : two_level_names()) names.push_back(name);
  return names;
}

/// Every route that is known, with what it carries: N 1..9, K 1, 3, N, 2N; ranks alone on their hosts, and in hosts of
/// unequal size.
std::vector<Job> jobs() {
  std::vector<Job> list;
  for (std::uint32_t n = 1; n <= 9; ++n) {
    std::vector<std::uint32_t> alone, unequal;
    for (std::uint32_t m = 0; m < n; ++m) {
      alone.push_back(m);
      unequal.push_back(m < 1 ? 0 : m < 4 ? 1 : 2);
    }
    for (const char* codec : kCodecs) {
      const CodecInfo info = make_codec(codec)->info();
      for (const std::string_view topology : all_names()) {
        for (const auto& host_of : {alone, unequal}) {
          if (make_route(topology)->why_unsupported({info, ReduceOp::average, host_of})) continue;
          for (const std::uint32_t k : {1U, 3U, n, 2 * n}) {
            if (info.whole && k > 1) continue;
            list.push_back({n, k, std::string(topology), codec, host_of, k % 2});
          }
        }
      }
    }
  }
  return list;
}

TEST(Topology, EverySendMeetsItsReceiveAndEveryContributionEveryRankOnce) {
  for (const Job& job : jobs()) {
    if (job.members == 1 && job.codec == "test_tworound") continue;
    const auto codec = make_codec(job.codec);
    for (const std::int64_t numel : {std::int64_t{0}, std::int64_t{1}, kUnit + 1, kUnits * kUnit}) {
      const GlobalGraph graph(job.request(*codec, numel));
      EXPECT_EQ(graph.fault(), "") << job.print() << ", " << numel << " elements";
      if (job.members == 1) continue;
      EXPECT_EQ(misrouted(graph), "") << job.print() << ", " << numel << " elements";
    }
  }
}

TEST(Topology, ValuesAreSettledBeforeAnythingIsComputed) {
  for (const Job& job : jobs()) {
    if (job.codec != "onebit") continue;
    const auto codec = make_codec(job.topology == "direct" ? "test_state(gather=1)" : "test_state(gather=0)");
    WorkflowRequest request = job.request(*codec);
    request.settles = true;
    const GlobalGraph graph(request);
    EXPECT_EQ(graph.fault(), "") << job.print();
    for (const Workflow& workflow : graph.members()) {
      std::vector<bool> follows(workflow.tasks.size(), false);
      std::uint32_t proposals = 0;
      for (std::size_t i = 0; i < workflow.tasks.size(); ++i) {
        const Task& task = workflow.tasks[i];
        const bool computes = task.primitive != Primitive::send && task.primitive != Primitive::recv;
        if (task.settles && task.primitive == Primitive::merge) follows[i] = true;
        if (task.settles && task.primitive == Primitive::encode) ++proposals;
        EXPECT_TRUE(!computes || task.settles || follows[i] || job.members == 1) << job.print() << ", task " << i;
        for (std::uint32_t s = 0; s < task.successor_count; ++s)
          if (follows[i]) follows[workflow.successors[task.first_successor + s]] = true;
      }
      EXPECT_EQ(proposals, job.members > 1 ? 1U : 0U) << job.print();
    }
  }
}

TEST(Topology, BroadcastAndAllgatherMeetToo) {
  const auto codec = make_codec("none");
  for (const Job& job : jobs()) {
    WorkflowRequest request = job.request(*codec, 1000);
    request.kind = OpKind::broadcast;
    request.root = job.members - 1;
    const GlobalGraph broadcast(request);
    for (std::uint32_t m = 0; m < job.members; ++m)
      EXPECT_EQ(broadcast.members()[m].partitions, broadcast.members()[0].partitions);
    EXPECT_EQ(built(broadcast).hops, job.members - 1) << job.print();
    request.kind = OpKind::allgather;
    request.shape = {0, 1};
    for (std::uint32_t m = 0; m < job.members; ++m) {
      request.counts.push_back(m % 3 == 1 ? 0 : 10 + m);
      request.shape.rows += request.counts.back();
    }
    const GlobalGraph allgather(request);
    EXPECT_EQ(built(allgather).hops, job.members > 1 ? 1U : 0U) << job.print();
  }
}

TEST(Topology, AReducescatterCostsTheReduceHalfOfAParameterServer) {
  for (const Job& job : jobs()) {
    const auto codec = make_codec(job.codec);
    const bool carried = job.codec == "none" || job.codec == "fp16" || job.codec == "onebit";
    if (job.topology != "ps" || !carried) continue;
    WorkflowRequest request = job.request(*codec);
    request.kind = OpKind::reducescatter;
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{job.members} + 1, 40 * kUnits}) {
      request.shape = {rows, 257};
      const GlobalGraph graph(request);
      EXPECT_EQ(graph.fault(), "") << job.print() << ", " << rows << " rows";
      EXPECT_LE(built(graph).hops, 1U) << job.print();
      for (std::uint32_t m = 0; m < job.members; ++m) {
        std::int64_t own = 0;
        for (const Layout& layout : graph.members()[m].layout) own += layout.output.size();
        EXPECT_EQ(own, (rows / job.members + (m < rows % job.members ? 1 : 0)) * 257) << job.print();
      }
    }
    if (kUnits % job.members != 0 || job.members == 1) continue;
    request.shape = {kUnits * kUnit, 1};
    const Built costs = built(GlobalGraph(request));
    const std::int64_t own = request.shape.rows / job.members;
    const auto payload = static_cast<double>(codec->bound({own, 1}, request.dtype, {0, own}, 0));
    const std::uint32_t cuts = (job.partitions + job.members - 1) / job.members;
    EXPECT_EQ(costs.hops, 1U) << job.print();
    EXPECT_EQ(costs.bytes, payload * (job.members - 1)) << job.print();
    EXPECT_EQ(costs.messages, cuts * (job.members - 1)) << job.print();
    EXPECT_EQ(costs.encodes, codec->info().identity ? 0U : 1U) << job.print();
    EXPECT_EQ(costs.decodes, codec->info().identity ? 0U : job.members - 1) << job.print();
  }
}

TEST(Topology, AnAlltoallSendsWhatGoesElsewhere) {
  const auto codec = make_codec("none");
  for (const Job& job : jobs()) {
    const std::uint32_t n = job.members;
    const auto elements = [](std::uint32_t from, std::uint32_t to) {
      return std::int64_t{(from + 2 * to + from * to) % 4} * 10;
    };
    WorkflowRequest request = job.request(*codec);
    request.kind = OpKind::alltoall;
    const GlobalGraph graph(request, [&](WorkflowRequest& own) {
      own.counts.clear();
      own.splits.clear();
      own.shape = {0, 1};
      for (std::uint32_t m = 0; m < n; ++m) {
        own.counts.push_back(elements(m, own.member));
        own.splits.push_back(elements(own.member, m));
        own.shape.rows += own.counts.back();
      }
    });
    EXPECT_EQ(graph.fault(), "") << job.print();
    std::int64_t most = 0;
    std::uint32_t messages = 0;
    for (std::uint32_t m = 0; m < n; ++m) {
      std::int64_t out = 0, in = 0;
      std::uint32_t sends = 0;
      for (std::uint32_t other = 0; other < n; ++other) {
        if (other == m) continue;
        out += elements(m, other);
        in += elements(other, m);
        sends += elements(m, other) > 0 ? 1 : 0;
      }
      most = std::max({most, out, in});
      messages = std::max(messages, sends);
    }
    EXPECT_EQ(built(graph).hops, most > 0 ? 1U : 0U) << job.print();
    EXPECT_EQ(built(graph).bytes, static_cast<double>(most) * 4) << job.print();
    EXPECT_EQ(built(graph).messages, messages) << job.print();
  }
}

TEST(Topology, RanksOfAHostAddNothingToWhatGoesBetweenHosts) {
  for (const char* name : {"none", "fp16", "onebit", "terngrad", "threelc", "tbq", "graddrop", "dgc", "adacomp",
                           "powersgd(rank=4)", "test_tworound"}) {
    const auto codec = make_codec(name);
    const std::uint32_t partitions = codec->info().whole ? 1 : 8;
    const auto bytes_with = [&](std::uint32_t ranks, const char* topology) {
      std::vector<std::uint32_t> host_of;
      for (std::uint32_t m = 0; m < 2 * ranks; ++m) host_of.push_back(m / ranks);
      const Job job{2 * ranks, partitions, topology, name, host_of};
      WorkflowRequest request = job.request(*codec);
      request.shape = {4096, 2048};
      return host_bytes(GlobalGraph(request), host_of);
    };
    const bool gathers = casync::gathers(codec->info());
    const double alone = bytes_with(1, gathers ? "direct" : "ps");
    EXPECT_GT(alone, 0) << name;
    for (const std::uint32_t ranks : {2U, 4U, 8U}) EXPECT_EQ(bytes_with(ranks, "two_level"), alone) << name;
  }
}

TEST(Topology, RefusesWhatNoRouteCarries) {
  CodecInfo runs;
  runs.spec = "runs";
  runs.rounds = {{Aggregation::reduce, Merge::sum}};
  runs.fixed_size = false;
  for (const std::string_view name : {"direct", "ps", "ring", "two_level"}) {
    try {
      check_supports(*make_route(name), {runs, ReduceOp::sum, {}});
      EXPECT_NE(name, "ring") << "it cuts payloads into parts";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(name, "ring");
      EXPECT_STREQ(error.what(),
                   "codec runs merges payloads of different lengths, which topology ring does not carry; use topology "
                   "\"direct\" or \"ps\" or \"two_level\"");
    }
  }
  const auto topk = make_codec("test_topk(ratio=0.1)");
  const auto rounds = make_codec("test_tworound");
  const auto averages = make_codec("test_lowrank");
  const auto state = make_codec("test_state(gather=0)");
  for (const auto& codec : {topk, rounds, averages, state}) {
    WorkflowRequest request = Job{2, 1, "ps", "", {0, 1}}.request(*codec);
    request.kind = OpKind::reducescatter;
    EXPECT_THROW(build_workflow(request), InvalidArgument) << codec->info().spec;
  }
  const auto none = make_codec("none");
  WorkflowRequest adasum = Job{2, 1, "ps", "", {0, 1}}.request(*none);
  adasum.op = ReduceOp::adasum;
  EXPECT_NO_THROW(build_workflow(adasum));
  adasum.partitions = 2;
  EXPECT_THROW(build_workflow(adasum), InvalidArgument);
  adasum.partitions = 1;
  adasum.route = make_route("ring").get();
  EXPECT_THROW(build_workflow(adasum), InvalidArgument);
}

}  // namespace
}  // namespace casync::test
