// Lists of phases: which there are, and that every one that is executed gives every rank every contribution once.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "casync/error.hpp"
#include "collectives/global_graph.hpp"
#include "routes/contributions.hpp"
#include "routes/phase_list.hpp"

namespace casync::test {
namespace {

bool is_flat(const PhaseList& list) { return list.front().scope == Scope::flat; }

bool has_codec(const PhaseList& list) {
  return std::ranges::any_of(list, [](const ListedPhase& phase) { return phase.carries != Carries::raw; });
}

/// Calls of the codec in a list, each of which may be on a device or on a host: an encode for each phase that is coded,
/// and a decode where payloads are not passed on.
std::uint32_t calls_of(const PhaseList& list) {
  std::uint32_t calls = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].carries == Carries::coded) ++calls;
    const bool passed = i + 1 < list.size() && list[i + 1].carries == Carries::passed;
    if (list[i].carries != Carries::raw && !passed) ++calls;
  }
  return calls;
}

/// ByteComp, section 4.2: 4,341 options. The numbers of the parts are those of an enumeration in Python that shares no
/// code with this one.
TEST(PhaseLists, AreThoseOfThePapersDecisionTree) {
  const std::vector<PhaseList> all = every_phase_list();
  std::uint32_t options = 0, flat = 0, raw = 0, executed = 0, executed_options = 0;
  std::set<std::string> texts;
  for (const PhaseList& list : all) {
    EXPECT_EQ(why_not_valid(list), std::nullopt) << text_of(list);
    texts.insert(text_of(list));
    options += 1U << calls_of(list);
    if (is_flat(list)) flat += 1U << calls_of(list);
    if (!has_codec(list)) ++raw;
    if (why_not_executed(list)) continue;
    ++executed;
    executed_options += 1U << calls_of(list);
  }
  EXPECT_EQ(all.size(), 174U);
  EXPECT_EQ(texts.size(), all.size()) << "each is there once";
  EXPECT_EQ(options, 4341U);
  EXPECT_EQ(flat, 63U);
  EXPECT_EQ(raw, 9U);
  EXPECT_EQ(executed, 106U);
  EXPECT_EQ(executed_options, 3205U);
}

/// Every list that differs from a valid one in one phase, or lacks one, or has one twice, is valid itself or refused,
/// and a refusal names a phase and a rule.
TEST(PhaseLists, RefuseWhatTheTreeDoesNotHave) {
  std::set<std::string> valid;
  for (const PhaseList& list : every_phase_list()) valid.insert(text_of(list));
  std::set<std::string> broken;
  const auto try_it = [&](const PhaseList& list) {
    const auto why = why_not_valid(list);
    EXPECT_EQ(why.has_value(), !valid.contains(text_of(list))) << text_of(list) << ": " << why.value_or("accepted");
    if (!why) return;
    broken.insert(text_of(list));
    EXPECT_TRUE(why->starts_with("phase ") || list.empty()) << *why;
    EXPECT_NE(why->find("): "), list.empty() ? 0 : std::string::npos) << *why;
  };
  for (const PhaseList& list : every_phase_list()) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      PhaseList other = list;
      other.erase(other.begin() + static_cast<std::ptrdiff_t>(i));
      try_it(other);
      other = list;
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(i), list[i]);
      try_it(other);
      for (std::size_t scope = 0; scope < kScopeName.size(); ++scope) {
        for (std::size_t routine = 0; routine < kRoutineName.size(); ++routine) {
          for (std::size_t carries = 0; carries < kCarriesName.size(); ++carries) {
            other = list;
            other[i] = {static_cast<Scope>(scope), static_cast<Routine>(routine), static_cast<Carries>(carries)};
            try_it(other);
          }
        }
      }
    }
  }
  EXPECT_GT(broken.size(), 500U);
}

TEST(PhaseLists, SayWhichRuleIsBroken) {
  const std::map<std::string, std::string> wrong{
      {"phases(inter allreduce)", "phase 0 (inter allreduce): the ranks of a host come first"},
      {"phases(flat alltoall coded, intra allgather)",
       "phase 1 (intra allgather): phases without levels do not mix with phases inside and between hosts"},
      {"phases(flat alltoall, flat allgather)", "phase 0 (flat alltoall): it gathers payloads, so it is not raw"},
      {"phases(flat reduce, flat allgather)", "phase 1 (flat allgather): after reduce comes broadcast"},
      {"phases(flat allreduce coded)",
       "phase 0 (flat allreduce coded): payloads are not summed on the way, so allreduce is raw"},
      {"phases(intra reduce_scatter, inter allgather passed, intra allgather)",
       "phase 1 (inter allgather passed): the phase before has no payloads that it could pass on"},
      {"phases(intra reduce_scatter, intra allgather)",
       "phase 1 (intra allgather): nothing goes between hosts before it"},
  };
  for (const auto& [text, why] : wrong) EXPECT_EQ(why_not_valid(*parse_phases(text)), why);
  EXPECT_THROW(make_route("phases(flat allreduce coded)"), InvalidArgument);
  EXPECT_THROW(parse_phases("phases(flat jump)"), InvalidArgument);
  EXPECT_THROW(parse_phases("phases(flat)"), InvalidArgument);
  EXPECT_THROW(parse_phases("phases()"), InvalidArgument);
  EXPECT_EQ(parse_phases("ps"), std::nullopt);
  for (const PhaseList& list : every_phase_list()) EXPECT_EQ(parse_phases(text_of(list)), list);
}

std::vector<std::vector<std::uint32_t>> worlds() {
  return {{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 1, 1, 2, 2, 2, 2}, {0, 0, 0}, {0, 1}};
}

TEST(PhaseLists, EverySendMeetsItsReceiveAndEveryContributionEveryRankOnce) {
  for (const PhaseList& list : every_phase_list()) {
    const auto route = make_route(text_of(list));
    EXPECT_EQ(route->name(), text_of(list));
    for (const char* name : {"none", "fp16", "onebit", "topk(ratio=0.01)"}) {
      const auto codec = make_codec(name);
      for (const auto& host_of : worlds()) {
        const auto why = route->why_unsupported({codec->info(), ReduceOp::average, host_of});
        EXPECT_EQ(why.has_value(), why_not_executed(list).has_value()) << why.value_or("");
        if (why) continue;
        for (const std::uint32_t partitions : {1U, 3U, 8U}) {
          WorkflowRequest request;
          request.shape = {8 * 4096, 1};
          request.codec = codec.get();
          request.route = route.get();
          request.partitions = partitions;
          request.first_owner = partitions % 2;
          request.host_of = host_of;
          const GlobalGraph graph(request);
          EXPECT_EQ(graph.fault(), "") << text_of(list) << ", " << name;
          EXPECT_EQ(misrouted(graph), "") << text_of(list) << ", " << name;
        }
      }
    }
  }
}

/// What a rank encodes of its contribution goes into one residual, so it encodes it once at most.
TEST(PhaseLists, ARankEncodesItsContributionOnce) {
  const auto codec = make_codec("onebit");
  for (const PhaseList& list : every_phase_list()) {
    if (why_not_executed(list)) continue;
    for (const auto& host_of : worlds()) {
      WorkflowRequest request;
      request.shape = {8 * 4096, 1};
      request.codec = codec.get();
      const auto route = make_route(text_of(list));
      request.route = route.get();
      request.partitions = 8;
      request.host_of = host_of;
      const GlobalGraph graph(request);
      std::map<std::uint32_t, std::uint32_t> holding;  // by partition: ranks that hold back what a result loses
      for (const Workflow& workflow : graph.members()) {
        std::map<std::uint32_t, std::uint32_t> encodes;
        for (const Task& task : workflow.tasks) {
          if (task.feedback) ++encodes[task.partition];
          if (task.holds_back) ++holding[task.partition];
          EXPECT_FALSE(task.feedback && task.again);
        }
        for (const auto& [partition, count] : encodes) EXPECT_EQ(count, 1U) << text_of(list);
      }
      const bool again = !is_flat(list) && list.back().carries == Carries::coded;
      for (std::uint32_t p = 0; p < 8; ++p) EXPECT_EQ(holding[p], again ? 1U : 0U) << text_of(list);
    }
  }
}

TEST(PhaseLists, RefuseCodecsThatTheyDoNotCarry) {
  const auto supports = [](const char* text, const char* codec) {
    return make_route(text)->why_unsupported({make_codec(codec)->info(), ReduceOp::average, {}});
  };
  EXPECT_EQ(supports("phases(flat alltoall coded, flat allgather coded)", "powersgd(rank=4, start_step=0)"),
            "codec powersgd(rank=4, start_step=0) merges payloads in rounds");
  EXPECT_EQ(supports("phases(intra reduce_scatter, inter allgather coded, intra allgather coded)", "adacomp"),
            "codec adacomp(bin=500) keeps more of a gradient than a residual, and phase 2 encodes what is a result "
            "already");
  EXPECT_EQ(supports("phases(flat alltoall coded, flat allgather passed)", "onebit"),
            "phase 1 (flat allgather passed) passes payloads on that nobody has added up, which is planned and not "
            "executed");
}

}  // namespace
}  // namespace casync::test
