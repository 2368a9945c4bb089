// What ready tasks wait for before they become actions.
#include "engine/task_manager.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "coordinator/local_policy.hpp"

namespace casync {
namespace {

/// Member 0 of two, with uncompressed gradients by PS: partition 0 is its own, partition 1 that of member 1.
class Managed : public testing::Test, private ActionSink {
 protected:
  Managed() {
    out_.open(*this);
    const auto codec = make_codec("none");
    WorkflowRequest request;
    request.shape = {8, 1};
    request.codec = codec.get();
    request.route = make_route("ps").get();
    request.partitions = 2;
    request.host_of = {0, 1};
    auto graph = std::make_shared<TaskGraph>(request);
    graph->codec = codec;
    graph_ = graph;
  }

  /// What was emitted since the last call: "begin", "reserve p", "send task", ...
  std::vector<std::string> seen() { return std::exchange(seen_, {}); }
  std::uint32_t find(Primitive primitive, std::uint32_t partition) const {
    for (const std::uint32_t task : graph_->members_of[partition]) {
      if (graph_->workflow.tasks[task].primitive == primitive) return task;
    }
    return 0xffffffffU;
  }
  static std::string with(const char* what, std::uint32_t task) { return what + std::to_string(task); }

  std::vector<std::uint32_t> handed_out;  // the instances of compute tasks
  std::vector<std::uint32_t> sent;        // and of sends
  std::shared_ptr<const TaskGraph> graph_;
  LocalPolicy policy_{0, 2, {}};
  Outbox out_{0, 2};
  TaskManager tasks_{{.inline_bytes = 1024, .pool_bytes = 1024, .members = 2}, policy_, out_};

 private:
  void emit(const Action& action) override {
    std::visit(Overloads{[this](const action::Reserve& a) { note("reserve ", a.partition); },
                         [this](const action::Release& a) { note("release ", a.partition); },
                         [this](const action::Run& a) {
                           std::string text(name_of(a.where));
                           for (const auto& one : a.batch) {
                             text += " " + std::to_string(one.task);
                             handed_out.push_back(one.instance);
                           }
                           seen_.push_back(text);
                         },
                         [this](const action::Send& a) {
                           note("send ", a.task);
                           sent.push_back(a.instance);
                         },
                         [this](const action::Accept& a) { note("accept ", a.task); },
                         [this](const action::Drop& /*drop*/) { seen_.emplace_back("drop"); },
                         [this](const action::Control& /*control*/) { seen_.emplace_back("control"); },
                         [](const auto& /*other*/) { FAIL() << "not a task manager's"; }},
               action);
  }
  void note(const char* what, std::uint32_t number) { seen_.push_back(with(what, number)); }
  std::vector<std::string> seen_;
};

using List = std::vector<std::string>;

constexpr std::uint32_t kOp = 3;
constexpr std::uint32_t kSequence = 5;

TEST_F(Managed, APartitionWaitsForItsMemoryAndASendForTheWindow) {
  EXPECT_FALSE(tasks_.begin(0, kOp, kSequence, graph_, {}));
  EXPECT_EQ(seen(), List{});
  tasks_.open_partitions();
  EXPECT_EQ(seen(), (List{"reserve 0", "reserve 1", "control"}));  // member 1 sends into partition 0: it is told
  tasks_.allow(1, 1);
  EXPECT_EQ(seen(), List{});
  tasks_.allow(1, 2);  // now partition 1 has its memory there, too
  EXPECT_EQ(seen(), (List{with("send ", find(Primitive::send, 1))}));
  EXPECT_EQ(policy_.queued(), 0U) << "what fits into a head asks no link";
}

TEST_F(Managed, ALargeSendAsksItsLinkAndGivesBackWhatItTook) {
  TaskManager large({.inline_bytes = 8, .pool_bytes = 1024, .members = 2}, policy_, out_);
  EXPECT_FALSE(large.begin(0, kOp, kSequence, graph_, {}));
  large.open_partitions();
  large.allow(1, 2);
  LinkPolicy::Outcome outcome;
  policy_.decide(0, outcome);
  ASSERT_EQ(outcome.release.size(), 1U);
  EXPECT_EQ(outcome.release[0][0].task, find(Primitive::send, 1));
  large.sent(0, find(Primitive::send, 1));
  policy_.add({0, 0, 1, 1ULL << 40});  // takes an idle link alone
  outcome.clear();
  policy_.decide(0, outcome);
  EXPECT_EQ(outcome.release.size(), 1U);
}

/// Of 4096 floats between two ranks.
std::shared_ptr<const TaskGraph> direct(const char* spec) {
  const auto codec = make_codec(spec);
  WorkflowRequest request;
  request.shape = {4096, 1};
  request.codec = codec.get();
  request.route = make_route("direct").get();
  request.host_of = {0, 1};
  auto graph = std::make_shared<TaskGraph>(request);
  graph->codec = codec;
  return graph;
}

/// A payload that its codec makes as long as it likes: up to 16 KiB of values and positions, mostly less.
TEST_F(Managed, WhatACodecHasMadeShortTravelsInAHead) {
  const auto graph = direct("adacomp");
  ASSERT_GT(graph->largest_message, 1024U);
  const auto task_of = [&](Primitive primitive) {
    const auto at = std::ranges::find(graph->workflow.tasks, primitive, &Task::primitive);
    return static_cast<std::uint32_t>(at - graph->workflow.tasks.begin());
  };
  for (const std::uint64_t bytes : {100U, 1025U}) {
    tasks_.begin(0, kOp, kSequence, graph, {.eager = true});
    seen();
    tasks_.note_bytes(0, task_of(Primitive::encode), bytes);
    tasks_.complete(0, task_of(Primitive::encode));
    const bool in_head = bytes <= 1024;
    EXPECT_EQ(seen(), in_head ? List{with("send ", task_of(Primitive::send))} : List{}) << bytes;
    EXPECT_EQ(policy_.queued(), in_head ? 0U : 1U) << "the others ask their link";
  }
}

TEST_F(Managed, PartitionsInWhichThisMemberHasNothingToDoAreCounted) {
  const auto codec = make_codec("none");
  WorkflowRequest request;
  request.kind = OpKind::alltoall;
  request.codec = codec.get();
  request.host_of = {0, 1};
  request.counts = request.splits = {0, 0};  // on member 1 there may be rows of its own
  auto nothing = std::make_shared<TaskGraph>(request);
  nothing->codec = codec;
  EXPECT_TRUE(tasks_.begin(0, kOp, kSequence, nothing, {}));
  tasks_.end(0);
  EXPECT_FALSE(tasks_.begin(0, kOp, kSequence, graph_, {}));  // tickets 2 and 3
  tasks_.open_partitions();
  EXPECT_EQ(seen(), (List{"reserve 0", "reserve 1", "control"}));
  tasks_.allow(1, 3);
  EXPECT_EQ(seen(), List{});
  tasks_.allow(1, 4);
  EXPECT_EQ(seen().size(), 1U);
}

TEST_F(Managed, AnEagerGraphWaitsForNeither) {
  EXPECT_FALSE(tasks_.begin(0, kOp, kSequence, graph_, {.eager = true}));
  EXPECT_EQ(seen(), (List{"reserve 0", "reserve 1", with("send ", find(Primitive::send, 1))}));
  EXPECT_EQ(tasks_.admission().used(), 0U);
}

TEST_F(Managed, AMessageWaitsForItsReceive) {
  tasks_.begin(0, kOp, kSequence, graph_, {.eager = true});
  const std::uint32_t pull = find(Primitive::recv, 1);  // into the output, which may be the input that is being sent
  seen();
  tasks_.arrived(0, pull, 5);
  EXPECT_EQ(seen(), List{});
  tasks_.complete(0, find(Primitive::send, 1));
  EXPECT_EQ(seen(), (List{with("accept ", pull)}));
}

/// Compute tasks that are ready at once: one per partition of a ring's first member, as many as there are partitions.
class Batches : public Managed {
 protected:
  /// What is handed out for `at_once_bytes` and `batch_bytes`; each task touches 4 elements, 16 bytes.
  List handed_out(std::size_t at_once_bytes, std::size_t batch_bytes) {
    const auto codec = make_codec("fp16");
    WorkflowRequest request;
    request.codec = codec.get();
    request.shape = {40, 1};
    request.route = make_route("direct").get();
    request.partitions = 10;
    request.host_of = {0, 1};
    auto graph = std::make_shared<TaskGraph>(request);
    graph->codec = codec;
    TaskManager tasks({.inline_bytes = 1024,
                       .pool_bytes = 1 << 20,
                       .members = 2,
                       .at_once_bytes = at_once_bytes,
                       .batch_bytes = batch_bytes},
                      policy_, out_);
    tasks.begin(0, kOp, kSequence, graph, {.eager = true});
    seen();
    tasks.run_ready();
    computing = tasks.computing(0);
    return seen();
  }
  bool computing = false;
};

TEST_F(Batches, WhatIsSmallRunsAtOnceInOneBatch) {
  const List list = handed_out(16, 160);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].substr(0, 7), "at once");
  EXPECT_EQ(std::ranges::count(list[0], ' '), 11);
  EXPECT_TRUE(computing);
}

TEST_F(Batches, ALargeTaskSendsAllToThePool) {
  for (const std::string& batch : handed_out(15, 160)) EXPECT_EQ(batch.substr(0, 11), "on the pool");
}

TEST_F(Batches, ManySmallTasksGoToThePoolInBatches) {
  const List list = handed_out(16, 64);
  ASSERT_EQ(list.size(), 3U);  // 4, 4 and 2 tasks
  EXPECT_EQ(std::ranges::count(list[0], ' '), 6);
  EXPECT_EQ(std::ranges::count(list[2], ' '), 4);
}

TEST_F(Managed, WhatIsOnAStreamIsLaunchedTogetherWhateverItsSizeAndApartFromTheHosts) {
  const auto codec = make_codec("onebit");
  WorkflowRequest request;
  request.shape = {64 * 4096, 1};
  request.codec = codec.get();
  request.route = make_route("direct").get();
  request.partitions = 2;
  request.host_of = {0, 1};
  auto graph = std::make_shared<TaskGraph>(request);
  graph->codec = codec;
  tasks_.begin(0, kOp, kSequence, graph, {.eager = true, .on_stream = true});
  tasks_.begin(1, kOp + 1, kSequence, graph, {.eager = true});
  seen();
  tasks_.run_ready();
  EXPECT_EQ(seen(), (List{"on the stream 0 4", "on the pool 0", "on the pool 4"}));
  EXPECT_TRUE(tasks_.computing(0));
  tasks_.launched(0, 0);
  tasks_.run_ready();
  EXPECT_EQ(seen(), List{}) << "the merge waits for the other's message, and the send for the bytes";
  tasks_.complete(0, 0);
  EXPECT_EQ(policy_.queued(), 1U) << "now the send may go";
}

/// Of equal ones what began first comes first: that is instance 0, then 2.
TEST_F(Managed, WhatIsReadyIsHandedOutByPriority) {
  const auto codec = make_codec("onebit");
  WorkflowRequest request;
  request.shape = {64 * 4096, 1};
  request.codec = codec.get();
  request.route = make_route("direct").get();
  request.host_of = {0, 1};
  auto graph = std::make_shared<TaskGraph>(request);
  graph->codec = codec;
  constexpr std::array<std::int32_t, 4> kPriorities{-1, 4, -1, 7};
  for (std::uint32_t i = 0; i < 4; ++i) {
    tasks_.begin(i, kOp + i, kSequence, graph, {.eager = true, .priority = kPriorities[i]});
  }
  tasks_.run_ready();
  EXPECT_EQ(handed_out, (std::vector<std::uint32_t>{3, 1, 0, 2}));
}

TEST_F(Managed, SendsThatWaitForAWindowLeaveByPriority) {
  for (const std::uint32_t i : {0U, 1U, 2U}) {
    tasks_.begin(i, kOp + i, kSequence, graph_, {.priority = i == 1 ? 5 : 2});
  }
  tasks_.open_partitions();
  sent.clear();
  tasks_.allow(1, 6);
  EXPECT_EQ(sent, (std::vector<std::uint32_t>{1, 0, 2}));
}

TEST_F(Managed, ASendTellsItsLinkItsPriority) {
  const auto graph = direct("none");
  for (const std::uint32_t i : {0U, 1U}) {
    tasks_.begin(i, kOp + i, kSequence, graph, {.eager = true, .priority = static_cast<std::int32_t>(i)});
  }
  LinkPolicy::Outcome outcome;
  policy_.decide(0, outcome);
  ASSERT_EQ(outcome.release.size(), 2U);
  EXPECT_EQ(outcome.release[0][0].instance, 1U);
  EXPECT_EQ(outcome.release[1][0].instance, 0U);
}

TEST_F(Managed, AnEndDropsTheMessagesThatWait) {
  tasks_.begin(0, kOp, kSequence, graph_, {.eager = true});
  tasks_.arrived(0, find(Primitive::recv, 1), 5);
  seen();
  tasks_.end(0);
  EXPECT_EQ(seen(), (List{"drop"}));
}

TEST_F(Managed, TheLastTaskOfAPartitionGivesItsMemoryBackAndTheLastOfAllEndsTheGraph) {
  tasks_.begin(0, kOp, kSequence, graph_, {});
  tasks_.open_partitions();
  EXPECT_GT(tasks_.admission().used(), 0U);
  seen();
  std::uint32_t left = static_cast<std::uint32_t>(graph_->workflow.tasks.size());
  for (std::uint32_t partition = 0; partition < 2; ++partition) {
    for (const std::uint32_t task : graph_->members_of[partition]) EXPECT_EQ(tasks_.complete(0, task), --left == 0);
    EXPECT_EQ(seen().back(), with("release ", partition));
  }
  EXPECT_EQ(tasks_.admission().used(), 0U);
}

}  // namespace
}  // namespace casync
