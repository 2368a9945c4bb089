// One Engine fed by hand: the orders of messages that are rare between real ranks.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "casync/error.hpp"
#include "engine/played.hpp"

namespace casync {
namespace {

using test::Played;

TEST(Engine, BeginsOnceWhenItsOwnEagerSubmitCompletesTheBook) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  ASSERT_EQ(root.finished(), (std::vector<Status>{Status::ok}));
  root.seen.clear();
  root.control(1, Ready{{0}, 1});  // held back there
  root.control(2, Ready{{0}, 1});
  root.submit();
  EXPECT_EQ(root.count("begin"), 1U);
  root.arrive(1, 1);
  root.arrive(2, 1);
  EXPECT_EQ(root.finished(), (std::vector<Status>{Status::ok}));
}

TEST(Engine, IgnoresAStartThatTheDataOvertook) {
  Played member(1, 3, 1 << 20);
  member.first_run(1, 3);
  member.seen.clear();
  member.submit();  // eager
  member.arrive(0, 1);
  member.arrive(2, 1);
  ASSERT_EQ(member.finished(), (std::vector<Status>{Status::ok}));
  member.control(0, Start{{0}, 1});  // for rank 2, which was held back
  EXPECT_EQ(member.finished().size(), 1U);
  member.submit();
  EXPECT_EQ(member.count("begin"), 2U);
}

TEST(Engine, TellsALateEagerMemberThatItsRunWasRefused) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  root.submit();
  root.plain(2, ControlKind::bye);  // it cannot happen without rank 2
  ASSERT_EQ(root.finished().back(), Status::aborted);
  root.seen.clear();
  root.control(1, Ready{{0}, 1, 0});  // rank 1 has begun it meanwhile
  root.arrive(1, 1);
  EXPECT_EQ(root.told(1), (std::vector<ControlKind>{ControlKind::refusal}));
}

TEST(Engine, HoldsItsRunBackWhereTheRootHasNotHeardOfTheOneBefore) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  root.submit();
  root.control(1, Ready{{0}, 1, 0});
  root.arrive(1, 1);
  root.arrive(2, 1);  // rank 2's word for run 1 takes longer than its data
  ASSERT_EQ(root.finished().size(), 2U);
  root.seen.clear();
  root.submit();
  EXPECT_EQ(root.count("begin"), 0U);
  root.control(1, Ready{{0}, 2, 0});
  root.control(2, Ready{{0}, 1, 0});
  root.control(2, Ready{{0}, 2, 0});
  EXPECT_EQ(root.count("begin"), 1U);
  root.arrive(1, 2);
  root.arrive(2, 2);
  EXPECT_EQ(root.finished(), (std::vector<Status>{Status::ok}));
}

TEST(Engine, KeepsAMessageOfTheNextRunForTheNextRun) {
  Played member(1, 3, 1 << 20);
  member.first_run(1, 3);
  member.seen.clear();
  member.submit();
  member.arrive(0, 1);
  member.arrive(0, 2);  // rank 0 is through with run 1 and ahead
  EXPECT_TRUE(member.finished().empty());
  member.arrive(2, 1);
  EXPECT_EQ(member.finished().size(), 1U);
  member.submit();
  member.arrive(2, 2);
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::ok, Status::ok}));
}

TEST(Engine, RefusesAnotherWordOnARunThatHasBegun) {
  for (const bool agreement : {true, false}) {
    Played member(1, 2, 0);
    member.hold();
    member.submit();
    GradientPlan ring;
    ring.topology = "ring";  // nobody begins it before he is told
    member.control(0, Agreement{"w", 0, 0, ring, {}});
    ASSERT_EQ(member.count("begin"), 1U);
    if (agreement)
      EXPECT_THROW(member.control(0, Agreement{"w", 0, 0, {}, {}}), CorruptPayload);
    else
      EXPECT_THROW(member.control(0, Refusal{"w", 0, Status::timeout, "too late"}), CorruptPayload);
    EXPECT_TRUE(member.finished().empty());
  }
}

TEST(Engine, RefusesAStartOfARunThatIsNotAgreedOn) {
  Played member(1, 2, 0);
  member.first_run(1, 2);
  member.define("w");  // by other terms, perhaps
  member.submit(0, 1);
  EXPECT_THROW(member.control(0, Start{{0}, 1}), CorruptPayload);
}

TEST(Engine, RefusesAVerdictWhoseRowsAreNotItsOwn) {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {2, 3, 4}, {3, 4}}) {
    Played member(1, 2, 0, OpKind::allgather);
    member.submit(3);
    EXPECT_THROW(member.control(0, Agreement{"w", 0, 0, {}, rows}), CorruptPayload);
    member.control(0, Agreement{"w", 0, 0, {}, {2, 3}});
    EXPECT_EQ(member.count("begin"), 1U);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {2, 3, 4}, {3, 4}, {-1, 3}, {kMost, 3}}) {
    Played member(1, 2, 0, OpKind::alltoall);
    const std::vector<std::int64_t> splits{7, 3};
    member.submit_splits(splits);
    EXPECT_THROW(member.control(0, Agreement{"w", 0, 0, {}, rows}), CorruptPayload);
    member.control(0, Agreement{"w", 0, 0, {}, {2, 3}});
    EXPECT_EQ(member.count("begin"), 1U);
  }
}

TEST(Engine, ARunWaitsForItsPlanAndNothingElseDoes) {
  Played root(0, 2, 0);
  root.define("b");
  root.first_run(0, 2);  // of w, which has its plan
  root.seen.clear();
  root.keep_plans();
  root.submit(0, 1);
  root.control(1, Request{"b", 0, Played::signature(), "there"});
  EXPECT_EQ(root.count("plan_wanted"), 1U);
  EXPECT_EQ(root.count("begin"), 0U);
  root.submit();
  root.control(1, Ready{{0}, 1});
  EXPECT_EQ(root.count("begin"), 1U) << "w goes on";
  root.answer();
  EXPECT_EQ(root.count("begin"), 2U);
  EXPECT_EQ(root.told(1), (std::vector<ControlKind>{ControlKind::start, ControlKind::agreement}));
}

TEST(Engine, ARunThatNeverGetsItsPlanIsReportedAndGivenUp) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  Played root(0, 1, 0);
  root.keep_plans();
  root.submit();
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) root.pass(kSecond);
  };
  pass(59);
  EXPECT_EQ(root.count("report"), 0U);
  pass(2);
  EXPECT_EQ(root.count("report"), 1U);
  pass(500);
  EXPECT_EQ(root.count("report"), 1U);
  EXPECT_TRUE(root.finished().empty());
  pass(40);
  ASSERT_EQ(root.finished(), (std::vector<Status>{Status::aborted}));
  EXPECT_NE(root.seen.back().failure->text.find("tensor w has waited for its plan for 600 s"), std::string::npos);
  root.answer();  // too late
  EXPECT_EQ(root.count("begin"), 0U);
}

TEST(Engine, ARunThatWasStoppedBesideItsPlannerWaitsAnew) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  Played root(0, 1, 0);
  root.keep_plans();
  root.submit();
  root.pass(kSecond);
  root.pass(3600 * kSecond);
  EXPECT_EQ(root.count("report"), 0U);
  root.answer();
  EXPECT_EQ(root.finished(), (std::vector<Status>{Status::ok}));
}

TEST(Engine, PlansThatAreWantedTogetherAreAskedForTogether) {
  Played root(0, 2, 0);
  root.define("b");
  root.submit(0, 0);
  root.submit(0, 1);
  root.control(1, Request{"w", 0, Played::signature(), "there"}, false);
  root.control(1, Request{"b", 0, Played::signature(), "there"});
  EXPECT_EQ(root.count("plan_wanted"), 1U);
  EXPECT_EQ(root.count("begin"), 2U);
}

TEST(Engine, APlanThatComesAfterTheSessionHasFailedMeansNothing) {
  Played root(0, 2, 0);
  root.keep_plans();
  root.submit();
  root.control(1, Request{"w", 0, Played::signature(), "there"});
  root.control(1, Abort{Status::aborted, "rank 1 gave up"});
  EXPECT_EQ(root.finished(), (std::vector<Status>{Status::aborted}));
  root.answer();
  EXPECT_EQ(root.count("begin"), 0U);
}

TEST(Engine, AsksForPlansAgainWhenTheyMayHaveChanged) {
  Played root(0, 2, 0, OpKind::allreduce, 1 << 16);  // so large that it waits for a start
  root.control(1, Credit{100});
  root.submit();
  root.control(1, Request{"w", 0, Played::signature(1 << 16), "there"});
  root.arrive(1, 0);
  ASSERT_EQ(root.finished().size(), 1U);
  root.seen.clear();
  for (std::uint32_t run = 1; run <= 3; ++run) {
    if (run == 2) root.plans_changed();
    root.submit();
    root.control(1, Ready{{0}, run});
    root.arrive(1, run);
    EXPECT_EQ(root.count("plan_wanted"), run < 2 ? 0U : 1U) << "once";
  }
  EXPECT_EQ(root.finished().size(), 3U);
}

TEST(Engine, TellsEachMemberOfAnAlltoallWhatComesToIt) {
  Played root(0, 3, 0, OpKind::alltoall);
  root.submit_splits({1, 2, 3});
  for (const Rank peer : {Rank{1}, Rank{2}}) {
    Request request{"w", 0, Played::signature(), "there"};
    request.signature.kind = OpKind::alltoall;
    for (const std::int64_t rows : {1, 2, 3}) request.splits.push_back(10 * peer + rows);
    root.control(peer, request);
  }
  std::map<Rank, std::vector<std::int64_t>> told;
  for (const Played::Seen& seen : root.seen) {
    if (seen.name == "control" && kind_of(seen.message) == ControlKind::agreement)
      told[seen.peer] = get_agreement(seen.message).rows;
  }
  EXPECT_EQ(told, (std::map<Rank, std::vector<std::int64_t>>{{1, {2, 12, 22}}, {2, {3, 13, 23}}}));
  EXPECT_EQ(root.count("begin"), 1U);
}

TEST(Engine, RefusesSplitsThatAreNotOneForEachMember) {
  Played member(1, 2, 0, OpKind::alltoall);
  EXPECT_THROW(member.submit(), InternalError);
  EXPECT_THROW(member.submit_splits({1, 2, 3}), InternalError);
  Played other(1, 2, 0);
  EXPECT_THROW(other.submit_splits({1, 2}), InternalError);
  Played root(0, 2, 0, OpKind::alltoall);
  Request request{"w", 0, Played::signature(), "there"};
  request.signature.kind = OpKind::alltoall;
  request.splits = {1, 2, 3};
  EXPECT_THROW(root.control(1, request), CorruptPayload);
}

TEST(Engine, LeavesInGoodOrderOnlyWithNothingOutstanding) {
  Played idle(1, 2, 0);
  idle.shutdown();
  EXPECT_EQ(idle.told(0), (std::vector<ControlKind>{ControlKind::bye}));
  Played busy(1, 2, 0);
  busy.submit();
  busy.seen.clear();
  busy.shutdown();
  EXPECT_EQ(busy.told(0), (std::vector<ControlKind>{ControlKind::abort}));
  EXPECT_EQ(busy.finished(), (std::vector<Status>{Status::aborted}));
}

TEST(Engine, EndsAnAbortedRunWhenTheWorkersAreThroughWithIt) {
  Played member(1, 2, 0);
  member.hold();
  member.first_run(1, 2);
  EXPECT_EQ(member.count("run"), 1U);
  member.control(0, Abort{Status::aborted, "rank 0 gave up"});
  EXPECT_TRUE(member.finished().empty());
  member.give_back();
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
}

TEST(Engine, WhatCanEndWithoutARankThatHasLeftDoesSo) {
  Played member(1, 3, 0);
  member.define("later");
  member.submit();
  member.control(2, Abort{Status::aborted, "rank 2 has shut down while", true});
  EXPECT_TRUE(member.finished().empty());
  member.submit(0, 1);  // nobody can agree on what is new
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
  member.control(0, Agreement{"w", 0, 0, {}, {}});  // rank 2 had seen it
  member.arrive(0, 0);
  member.arrive(2, 0);
  member.pass(0);
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted, Status::ok}));
  member.submit();
  EXPECT_EQ(member.finished().back(), Status::aborted);
}

TEST(Engine, AllThatHaveLeftAreNamedWhereTheRootHasLeftToo) {
  Played member(1, 3, 0);
  member.plain(2, ControlKind::bye);
  member.plain(0, ControlKind::bye);
  member.submit();
  ASSERT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
  EXPECT_EQ(member.seen.back().failure.value().text,
            "rank 0 has shut down, and so has rank 2; tensor w cannot be agreed on");
}

TEST(Engine, ARankThatLeavesAfterAnotherPassesOnWhyAsItHeardIt) {
  Played member(1, 3, 0);
  member.control(2, Abort{Status::aborted, "rank 2 has shut down while", true});
  member.pass(0);
  member.seen.clear();
  member.shutdown();
  ASSERT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::abort}));
  EXPECT_TRUE(get_abort(member.seen.front().message).left);
}

TEST(Engine, WhatTheRootHasNotSubmittedEndsWhenItLeaves) {
  Played member(1, 3, 1 << 20);
  member.first_run(1, 3);
  member.seen.clear();
  member.submit();  // begins at once, and the root is gone before it submits
  member.plain(0, ControlKind::bye);
  member.pass(0);
  ASSERT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
  const std::string text = member.seen.back().failure.value().text;
  EXPECT_NE(text.find("rank 0 has shut down without submitting tensor w, which rank 1 submitted at here"),
            std::string::npos)
      << text;
}

TEST(Engine, WhatTheRootSubmittedBeforeItLeftGoesOn) {
  Played member(1, 3, 1 << 20);
  member.first_run(1, 3);
  member.seen.clear();
  member.submit();
  member.arrive(0, 1);
  member.plain(0, ControlKind::bye);
  member.pass(0);
  member.pass(5'000'000'000);  // rank 2 is late
  EXPECT_TRUE(member.finished().empty());
  member.arrive(2, 1);
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::ok}));
}

TEST(Engine, WhatCannotEndsASecondLater) {
  Played member(1, 3, 0);
  member.submit();
  member.control(2, Abort{Status::aborted, "rank 2 has shut down while", true});
  member.pass(999'000'000);
  EXPECT_TRUE(member.finished().empty());
  member.pass(1'000'000);
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
}

TEST(Engine, ATaskThatFailsAbortsTheSession) {
  Played member(1, 2, 0);
  member.hold();
  member.first_run(1, 2);
  member.seen.clear();
  member.give_back({.text = "merge failed"});
  EXPECT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::abort}));
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
}

TEST(Engine, WhatEndsTheSessionIsToldAsWhatItIs) {
  Played member(1, 2, 0);
  member.hold();
  member.first_run(1, 2);
  member.seen.clear();
  member.give_back({.status = Status::corrupt, .text = "bytes from rank 0: not a payload"});
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::corrupt}));
  ASSERT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::abort}));
  const auto told = std::ranges::find(member.seen, "control", &Played::Seen::name);
  EXPECT_EQ(get_abort(told->message).status, Status::corrupt);
  Played other(0, 2, 0);
  other.submit();
  other.control(1, get_abort(told->message));
  EXPECT_EQ(other.finished(), (std::vector<Status>{Status::corrupt}));
}

TEST(Engine, AControlMessageThatCannotBeReadNamesItsSender) {
  Played member(1, 3, 0);
  member.submit();
  const auto said = [&](Bytes bytes) -> std::string {
    try {
      member.control_bytes(2, bytes);
    } catch (const CorruptPayload& error) {
      return error.what();
    }
    return {};
  };
  Bytes abort, ready;
  put(abort, Abort{Status::ok, "nothing failed"});
  put(ready, Ready{});
  ready.pop_back();
  for (const Bytes& bytes : {Bytes{}, Bytes{std::byte{0x77}}, abort, ready})
    EXPECT_NE(said(bytes).find("rank 2"), std::string::npos) << said(bytes);
  EXPECT_TRUE(member.finished().empty());
}

TEST(Engine, MeansNothingByMessagesAfterAnAbort) {
  Played member(1, 2, 0);
  member.submit();
  member.control(0, Abort{Status::aborted, "rank 0 gave up"});
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
  EXPECT_NO_THROW(member.control(0, Agreement{"w", 0, 0, {}, {}}));
  EXPECT_NO_THROW(member.control(0, Start{{0}, 0}));
  member.seen.clear();
  member.plain(0, ControlKind::ping);  // but it lives
  EXPECT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::pong}));
}

}  // namespace
}  // namespace casync
