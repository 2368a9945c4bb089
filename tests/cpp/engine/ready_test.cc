// A steady step: what becomes ready together is told together, and how long that may take among many ranks.
#include <gtest/gtest.h>

#include "casync/error.hpp"
#include "engine/negotiation.hpp"
#include "engine/played.hpp"

namespace casync {
namespace {

using test::Played;

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr std::int64_t kLarge = 1 << 16;  // elements: it waits for a start

/// A member of a world whose tensors "w", "b", "c" and "d" are agreed on, and their first runs over.
class Agreed : public Played {
 public:
  Agreed(Rank member, Rank members, const std::vector<std::int32_t>& priorities = {0, 0, 0, 0},
         std::size_t pool_bytes = EngineOptions{}.pool_bytes)
      : Played(member, members, 0, OpKind::allreduce, kLarge, pool_bytes) {
    const std::vector<std::string> names{"w", "b", "c", "d"};
    GradientPlan plan;
    plan.topology = "direct";
    for (std::uint32_t t = 0; t < names.size(); ++t) {
      if (t > 0) define(names[t], OpKind::allreduce, kLarge, priorities[t]);
      submit(0, t);
      if (member != 0) control(0, Agreement{names[t], 0, t, plan, {}});
      for (Rank peer = 0; peer < members; ++peer) {
        if (peer == member) continue;
        if (member == 0) control(peer, Request{names[t], 0, signature(kLarge, priorities[t]), "there"});
        control(peer, Credit{100});
      }
      for (Rank peer = 0; peer < members; ++peer) {
        if (peer != member) arrive(peer, 0, t);
      }
    }
    EXPECT_EQ(finished().size(), names.size());
    pass(1'000'000 * kMicrosecond);
    seen.clear();
  }
};

std::vector<Ready> readies(const Played& world) { return world.said(0, ControlKind::ready, get_ready); }
std::vector<Start> starts(const Played& world, Rank peer) { return world.said(peer, ControlKind::start, get_start); }

TEST(Ready, OneReportForAllThatBecomesReadyInOneTurn) {
  Agreed member(1, 3);
  for (const std::uint32_t tensor : {3U, 0U, 2U}) member.submit(0, tensor, false);
  EXPECT_TRUE(readies(member).empty());
  member.pass(0);
  ASSERT_EQ(readies(member).size(), 1U);
  EXPECT_EQ(readies(member)[0].ops, (OpSet{0, 2, 3}));
  EXPECT_EQ(readies(member)[0].sequence, 1U);
  EXPECT_EQ(readies(member)[0].wants_start, 1U);
  member.submit(0, 1);
  EXPECT_EQ(readies(member).size(), 2U) << "a turn of its own";
}

TEST(Ready, OneStartToEachForAllThatTheRootStartsInOneTurn) {
  Agreed root(0, 3);
  for (const std::uint32_t tensor : {0U, 1U, 2U}) root.submit(0, tensor);
  root.control(1, Ready{{0, 1, 2}, 1});
  EXPECT_TRUE(starts(root, 1).empty());
  root.control(2, Ready{{2, 0}, 1});
  for (const Rank peer : {Rank{1}, Rank{2}}) {
    ASSERT_EQ(starts(root, peer).size(), 1U);
    EXPECT_EQ(starts(root, peer)[0].ops, (OpSet{0, 2}));
  }
  EXPECT_EQ(root.count("begin"), 2U);
  root.control(2, Ready{{1}, 1});
  EXPECT_EQ(starts(root, 2).size(), 2U);
  EXPECT_EQ(root.count("begin"), 3U);
}

TEST(Ready, AMemberBeginsAllThatAStartNames) {
  Agreed member(1, 3);
  for (const std::uint32_t tensor : {0U, 1U, 2U}) member.submit(0, tensor);
  member.control(0, Start{{0, 2}, 1});
  EXPECT_EQ(member.count("begin"), 2U);
  EXPECT_THROW(member.control(0, Start{{1, 77}, 1}), Error) << "operation 77 was never agreed";
}

TEST(Ready, OfWhatOneStartNamesAHigherPriorityBeginsFirst) {
  const std::vector<std::int32_t> priorities{0, -1, 3, 0};
  Agreed root(0, 3, priorities);
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) root.submit(0, tensor);
  for (const Rank peer : {Rank{1}, Rank{2}}) root.control(peer, Ready{{0, 1, 2, 3}, 1});
  EXPECT_EQ(root.begun(), (std::vector<std::uint32_t>{2, 0, 3, 1}));
  Agreed member(1, 3, priorities);
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) member.submit(0, tensor);
  member.control(0, Start{{0, 1, 2, 3}, 1});
  EXPECT_EQ(member.begun(), root.begun());
}

TEST(Ready, WherePrioritiesDifferTheRootStartsNoMoreThanItHasMemoryFor) {
  const auto both = {Rank{1}, Rank{2}};
  Agreed root(0, 3, {0, -1, 3, 0}, 1);
  for (const std::uint32_t tensor : {0U, 1U, 3U}) root.submit(0, tensor);
  for (const Rank peer : both) root.control(peer, Ready{{0, 1, 3}, 1});
  std::vector<std::uint32_t> expected{0};
  EXPECT_EQ(root.begun(), expected) << "it alone takes more than there is, and goes when there is nothing else";
  root.submit(0, 2);
  for (const Rank peer : both) root.control(peer, Ready{{2}, 1});
  EXPECT_EQ(root.begun(), expected);
  for (const std::uint32_t next : {2U, 3U, 1U}) {
    for (const Rank peer : both) root.arrive(peer, 1, expected.back());
    expected.push_back(next);
    EXPECT_EQ(root.begun(), expected) << "what came late has the highest priority";
  }
}

TEST(Ready, WherePrioritiesAreEqualAllIsStartedAtOnce) {
  Agreed root(0, 3, {0, 0, 0, 0}, 1);
  for (const std::uint32_t tensor : {0U, 1U, 2U}) root.submit(0, tensor);
  for (const Rank peer : {Rank{1}, Rank{2}}) root.control(peer, Ready{{0, 1, 2}, 1});
  ASSERT_EQ(starts(root, 1).size(), 1U);
  EXPECT_EQ(starts(root, 1)[0].ops, (OpSet{0, 1, 2}));
}

TEST(Ready, APlanMayGiveAnotherPriorityThanTheProgram) {
  Agreed member(1, 2, {0, -1, 3, 0});
  const std::vector<std::string> names{"w", "b", "c", "d"};
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) {
    GradientPlan plan;
    plan.topology = "direct";
    if (tensor == 1) plan.priority = 9;
    if (tensor == 2) plan.priority = 0;
    member.submit(0, tensor);
    member.control(0, Agreement{names[tensor], 1, tensor, plan, {}});
    member.arrive(0, 1, tensor);
  }
  member.seen.clear();
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) member.submit(0, tensor);
  member.control(0, Start{{0, 1, 2, 3}, 2});
  EXPECT_EQ(member.begun(), (std::vector<std::uint32_t>{1, 0, 2, 3}));
}

TEST(Ready, WhatIsNewIsAskedForAfterWhatWasReadyBefore) {
  Agreed member(1, 3);
  member.define("new");
  member.submit(0, 2, false);
  member.submit(0, 4, false);
  EXPECT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::ready, ControlKind::request}));
}

TEST(Ready, WhatElseTheRootTellsComesAfterTheStartsBeforeIt) {
  Agreed root(0, 3);
  root.define("new");
  for (const std::uint32_t tensor : {0U, 4U}) root.submit(0, tensor);
  for (const Rank peer : {Rank{1}, Rank{2}}) {
    root.control(peer, Ready{{0}, 1}, false);
    root.control(peer, Request{"new", 0, Played::signature(8), "there"}, false);  // the root has 4 elements
  }
  EXPECT_EQ(root.told(1), (std::vector<ControlKind>{ControlKind::start, ControlKind::refusal}));
}

TEST(Ready, WhoLeavesHasSaidWhatItWasReadyFor) {
  Agreed member(1, 40);
  member.submit(0, 0);
  member.submit(0, 1);  // held back
  ASSERT_EQ(readies(member).size(), 1U);
  member.shutdown();
  ASSERT_EQ(readies(member).size(), 2U);
  EXPECT_EQ(member.told(0).back(), ControlKind::abort);
}

TEST(Ready, FewRanksHoldNothingBackAndManyAtMost5Ms) {
  for (const std::uint32_t members : {1U, 2U, 16U}) EXPECT_EQ(Negotiation::interval_for(members), 0);
  EXPECT_EQ(Negotiation::interval_for(17), 170 * kMicrosecond);
  EXPECT_EQ(Negotiation::interval_for(128), 1'280 * kMicrosecond);
  EXPECT_EQ(Negotiation::interval_for(4'000), 5'000 * kMicrosecond);
}

TEST(Ready, AmongManyRanksTheNextReportWaits) {
  Agreed member(1, 40);
  EXPECT_EQ(member.wakes_in(), std::nullopt);
  member.submit(0, 0);
  EXPECT_EQ(readies(member).size(), 1U) << "the first one goes at once";
  member.submit(0, 1);
  member.pass(100 * kMicrosecond);
  member.submit(0, 2);
  EXPECT_EQ(readies(member).size(), 1U);
  EXPECT_EQ(member.wakes_in(), 300 * kMicrosecond);
  member.pass(300 * kMicrosecond);
  ASSERT_EQ(readies(member).size(), 2U);
  EXPECT_EQ(readies(member)[1].ops, (OpSet{1, 2}));
  EXPECT_EQ(member.wakes_in(), std::nullopt);
}

TEST(Ready, AmongManyRanksTheNextStartWaits) {
  Agreed root(0, 40);
  for (const std::uint32_t tensor : {0U, 1U, 2U}) {
    root.submit(0, tensor);
    for (Rank peer = 1; peer < 40; ++peer) root.control(peer, Ready{{tensor}, 1});
  }
  ASSERT_EQ(starts(root, 7).size(), 1U) << "the first one goes at once";
  EXPECT_EQ(root.count("begin"), 1U) << "nor does the root begin before the others";
  EXPECT_EQ(root.wakes_in(), 400 * kMicrosecond);
  root.pass(400 * kMicrosecond);
  ASSERT_EQ(starts(root, 7).size(), 2U);
  EXPECT_EQ(starts(root, 7)[1].ops, (OpSet{1, 2}));
  EXPECT_EQ(root.count("begin"), 3U);
}

}  // namespace
}  // namespace casync
