// One Engine fed by hand: the orders of messages that are rare between real ranks.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "casync/error.hpp"
#include "coordinator/local_policy.hpp"

namespace casync {
namespace {

/// An Engine of one member whose effects succeed at once; the other members are played by the test.
class Played : private ActionSink {
 public:
  struct Seen {
    Action action;
    Bytes bytes;
  };

  Played(std::uint32_t member, std::uint32_t members, std::size_t eager_bytes, OpKind kind = OpKind::allreduce)
      : engine_(options(member, members, eager_bytes),
                std::make_unique<LocalPolicy>(static_cast<std::uint16_t>(member), static_cast<std::uint16_t>(members),
                                              LocalPolicy::Options{}),
                [](const std::string&, const Signature&) { return GradientPlan{}; }) {
    define("w", kind);
  }

  void define(const std::string& name, OpKind kind = OpKind::allreduce) {
    Request definition{name, 0, signature(), "here"};
    definition.signature.kind = kind;
    Bytes bytes;
    put_definition(bytes, definition);
    apply({.kind = EventKind::define, .id = definitions_++, .bytes = bytes});
  }

  static Signature signature() {
    Signature signature;
    signature.shape = {4, 1};
    signature.compression = "none";
    signature.topology = "auto";
    return signature;
  }

  void submit(std::uint64_t rows = 0, std::uint32_t registration = 0) {
    apply({.kind = EventKind::submit, .id = registration, .size = rows, .value = ++handle_});
  }
  void submit_splits(const std::vector<std::int64_t>& splits) {
    apply({.kind = EventKind::submit, .value = ++handle_, .bytes = std::as_bytes(std::span(splits))});
  }
  template <typename Message>
  void control(std::uint16_t peer, const Message& message) {
    Bytes bytes;
    put(bytes, message);
    control_bytes(peer, bytes);
  }
  void control_bytes(std::uint16_t peer, const Bytes& bytes) {
    apply({.kind = EventKind::control, .peer = peer, .bytes = bytes});
  }
  void plain(std::uint16_t peer, ControlKind kind) {
    Bytes bytes;
    put_plain(bytes, kind);
    apply({.kind = EventKind::control, .peer = peer, .bytes = bytes});
  }
  /// The contribution of `peer` to run `sequence` of op 0.
  void arrive(std::uint16_t peer, std::uint32_t sequence) {
    apply({.kind = EventKind::arrived,
           .peer = peer,
           .op = 0,
           .sequence = sequence,
           .tag = 0,
           .size = 16,
           .value = ++cookie_});
  }
  void shutdown() { apply({.kind = EventKind::shutdown}); }
  void pass(Nanoseconds time) {
    now_ += time;
    engine_.decide(now_, *this);
  }
  /// From now on workers keep their tasks, until one is given back, done or failed.
  void hold() { holds_ = true; }
  /// `failure` of status ok: there is none.
  void give_back(const Abort& failure = {Status::ok, {}}) {
    Event ran = held_.back();
    held_.pop_back();
    Bytes bytes;
    if (failure.status != Status::ok) put(bytes, failure);
    ran.status = failure.status;
    ran.bytes = bytes;
    apply(ran);
  }
  /// The first run, on everybody's request.
  void first_run(std::uint32_t member, std::uint32_t members) {
    submit();
    for (std::uint16_t peer = 0; peer < members; ++peer) {
      if (member == 0 && peer != 0) control(peer, Request{"w", 0, signature(), "there"});
    }
    if (member != 0) control(0, Verdict{"w", 0, 0, {}, {}});
    for (std::uint16_t peer = 0; peer < members; ++peer) {
      if (peer != member) arrive(peer, 0);
    }
  }

  std::size_t count(ActionKind kind) const {
    return static_cast<std::size_t>(
        std::count_if(seen.begin(), seen.end(), [&](const Seen& one) { return one.action.kind == kind; }));
  }
  std::vector<Status> finished() const {
    std::vector<Status> list;
    for (const Seen& one : seen) {
      if (one.action.kind == ActionKind::finish) list.push_back(one.action.status);
    }
    return list;
  }
  std::vector<ControlKind> told(std::uint16_t peer) const {
    std::vector<ControlKind> list;
    for (const Seen& one : seen) {
      if (one.action.kind == ActionKind::control && one.action.peer == peer) list.push_back(kind_of(one.bytes));
    }
    return list;
  }

  std::vector<Seen> seen;

 private:
  static EngineOptions options(std::uint32_t member, std::uint32_t members, std::size_t eager_bytes) {
    EngineOptions options;
    options.member = member;
    for (std::uint32_t m = 0; m < members; ++m) options.host_of.push_back(m);
    options.eager_bytes = eager_bytes;
    return options;
  }

  void apply(const Event& event) {
    engine_.apply(event, now_, *this);
    engine_.decide(now_, *this);
    while (!follow_.empty()) {
      const Event next = follow_.front();
      follow_.erase(follow_.begin());
      engine_.apply(next, now_, *this);
    }
  }
  void emit(const Action& action) override {
    seen.push_back({action, {action.bytes.begin(), action.bytes.end()}});
    const Event done{.id = action.id, .task = action.task};
    if (action.kind == ActionKind::run) (holds_ ? held_ : follow_).push_back(with(done, EventKind::ran));
    if (action.kind == ActionKind::send) follow_.push_back(with(done, EventKind::sent));
    if (action.kind == ActionKind::accept) follow_.push_back(with(done, EventKind::received));
  }
  static Event with(Event event, EventKind kind) {
    event.kind = kind;
    return event;
  }

  std::uint32_t definitions_ = 0;
  std::uint64_t handle_ = 0;
  std::uint64_t cookie_ = 0;
  std::vector<Event> follow_;
  bool holds_ = false;
  std::vector<Event> held_;
  Nanoseconds now_ = 0;
  Engine engine_;
};

TEST(Engine, BeginsOnceWhenItsOwnEagerSubmitCompletesTheBook) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  ASSERT_EQ(root.finished(), (std::vector<Status>{Status::ok}));
  root.seen.clear();
  root.control(1, Ready{0, 1});  // held back there
  root.control(2, Ready{0, 1});
  root.submit();
  EXPECT_EQ(root.count(ActionKind::begin), 1U);
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
  member.control(0, Start{0, 1});  // for rank 2, which was held back
  EXPECT_EQ(member.finished().size(), 1U);
  member.submit();
  EXPECT_EQ(member.count(ActionKind::begin), 2U);
}

TEST(Engine, TellsALateEagerMemberThatItsRunWasRefused) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  root.submit();
  root.plain(2, ControlKind::bye);  // it cannot happen without rank 2
  ASSERT_EQ(root.finished().back(), Status::aborted);
  root.seen.clear();
  root.control(1, Ready{0, 1, 0});  // rank 1 has begun it meanwhile
  root.arrive(1, 1);
  EXPECT_EQ(root.told(1), (std::vector<ControlKind>{ControlKind::refuse}));
}

TEST(Engine, HoldsItsRunBackWhereTheRootHasNotHeardOfTheOneBefore) {
  Played root(0, 3, 1 << 20);
  root.first_run(0, 3);
  root.submit();
  root.control(1, Ready{0, 1, 0});
  root.arrive(1, 1);
  root.arrive(2, 1);  // rank 2's word for run 1 takes longer than its data
  ASSERT_EQ(root.finished().size(), 2U);
  root.seen.clear();
  root.submit();
  EXPECT_EQ(root.count(ActionKind::begin), 0U);
  root.control(1, Ready{0, 2, 0});
  root.control(2, Ready{0, 1, 0});
  root.control(2, Ready{0, 2, 0});
  EXPECT_EQ(root.count(ActionKind::begin), 1U);
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
  for (const bool verdict : {true, false}) {
    Played member(1, 2, 0);
    member.hold();
    member.submit();
    GradientPlan ring;
    ring.topology = Topology::ring;  // nobody begins it before he is told
    member.control(0, Verdict{"w", 0, 0, ring, {}});
    ASSERT_EQ(member.count(ActionKind::begin), 1U);
    if (verdict)
      EXPECT_THROW(member.control(0, Verdict{"w", 0, 0, {}, {}}), CorruptPayload);
    else
      EXPECT_THROW(member.control(0, Refuse{"w", 0, Status::timeout, "too late"}), CorruptPayload);
    EXPECT_TRUE(member.finished().empty());
  }
}

TEST(Engine, RefusesAStartOfARunThatIsNotAgreedOn) {
  Played member(1, 2, 0);
  member.first_run(1, 2);
  member.define("w");  // by other terms, perhaps
  member.submit(0, 1);
  EXPECT_THROW(member.control(0, Start{0, 1}), CorruptPayload);
}

TEST(Engine, RefusesAVerdictWhoseRowsAreNotItsOwn) {
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {2, 3, 4}, {3, 4}}) {
    Played member(1, 2, 0, OpKind::allgather);
    member.submit(3);
    EXPECT_THROW(member.control(0, Verdict{"w", 0, 0, {}, rows}), CorruptPayload);
    member.control(0, Verdict{"w", 0, 0, {}, {2, 3}});
    EXPECT_EQ(member.count(ActionKind::begin), 1U);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{2}, {2, 3, 4}, {3, 4}, {-1, 3}, {kMost, 3}}) {
    Played member(1, 2, 0, OpKind::alltoall);
    const std::vector<std::int64_t> splits{7, 3};
    member.submit_splits(splits);
    EXPECT_THROW(member.control(0, Verdict{"w", 0, 0, {}, rows}), CorruptPayload);
    member.control(0, Verdict{"w", 0, 0, {}, {2, 3}});
    EXPECT_EQ(member.count(ActionKind::begin), 1U);
  }
}

TEST(Engine, TellsEachMemberOfAnAlltoallWhatComesToIt) {
  Played root(0, 3, 0, OpKind::alltoall);
  root.submit_splits({1, 2, 3});
  for (const std::uint16_t peer : {std::uint16_t{1}, std::uint16_t{2}}) {
    Request request{"w", 0, Played::signature(), "there"};
    request.signature.kind = OpKind::alltoall;
    for (const std::int64_t rows : {1, 2, 3}) request.splits.push_back(10 * peer + rows);
    root.control(peer, request);
  }
  std::map<std::uint16_t, std::vector<std::int64_t>> told;
  for (const Played::Seen& seen : root.seen) {
    if (seen.action.kind == ActionKind::control && kind_of(seen.bytes) == ControlKind::verdict)
      told[seen.action.peer] = get_verdict(seen.bytes).rows;
  }
  EXPECT_EQ(told, (std::map<std::uint16_t, std::vector<std::int64_t>>{{1, {2, 12, 22}}, {2, {3, 13, 23}}}));
  EXPECT_EQ(root.count(ActionKind::begin), 1U);
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
  EXPECT_EQ(member.count(ActionKind::run), 1U);
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
  member.control(0, Verdict{"w", 0, 0, {}, {}});  // rank 2 had seen it
  member.arrive(0, 0);
  member.arrive(2, 0);
  member.pass(0);
  EXPECT_EQ(member.finished(), (std::vector<Status>{Status::aborted, Status::ok}));
  member.submit();
  EXPECT_EQ(member.finished().back(), Status::aborted);
}

TEST(Engine, ARankThatLeavesAfterAnotherPassesOnWhyAsItHeardIt) {
  Played member(1, 3, 0);
  member.control(2, Abort{Status::aborted, "rank 2 has shut down while", true});
  member.pass(0);
  member.seen.clear();
  member.shutdown();
  ASSERT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::abort}));
  EXPECT_TRUE(get_abort(member.seen.front().bytes).left);
}

TEST(Engine, WhatTheRootHasNotSubmittedEndsWhenItLeaves) {
  Played member(1, 3, 1 << 20);
  member.first_run(1, 3);
  member.seen.clear();
  member.submit();  // begins at once, and the root is gone before it submits
  member.plain(0, ControlKind::bye);
  member.pass(0);
  ASSERT_EQ(member.finished(), (std::vector<Status>{Status::aborted}));
  const std::string text = get_abort(member.seen.back().bytes).text;
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
  const auto is_abort = [](const Played::Seen& one) { return one.action.kind == ActionKind::control; };
  const auto told = std::find_if(member.seen.begin(), member.seen.end(), is_abort);
  EXPECT_EQ(get_abort(told->bytes).status, Status::corrupt);
  Played other(0, 2, 0);
  other.submit();
  other.control(1, get_abort(told->bytes));
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
  EXPECT_NO_THROW(member.control(0, Verdict{"w", 0, 0, {}, {}}));
  EXPECT_NO_THROW(member.control(0, Start{0, 0}));
  member.seen.clear();
  member.plain(0, ControlKind::ping);  // but it lives
  EXPECT_EQ(member.told(0), (std::vector<ControlKind>{ControlKind::pong}));
}

}  // namespace
}  // namespace casync
