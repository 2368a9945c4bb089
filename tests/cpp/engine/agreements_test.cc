// Operations, and the messages that overtake them.
#include "engine/agreements.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kName = 3;
constexpr std::uint32_t kOp = 9;

Signature signature_of(OpKind kind, std::int64_t numel) {
  Signature signature;
  signature.kind = kind;
  signature.shape = {numel, 1};
  return signature;
}

std::vector<std::uint64_t> message_ids(const std::vector<Agreements::Early>& messages) {
  std::vector<std::uint64_t> list;
  for (const Agreements::Early& message : messages) list.push_back(message.message_id);
  return list;
}

TEST(Agreements, BuildAnOperationOnceUntilItsPlanChanges) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  EXPECT_EQ(agreements.find(kOp), nullptr);
  Agreement agreement{"w", 0, kOp, {}, {}};
  const Signature signature = signature_of(OpKind::allreduce, 100);
  const auto first = agreements.agree(agreement, kName, signature).graphs.front();
  EXPECT_TRUE(agreements.find(kOp)->eager);
  EXPECT_EQ(agreements.agree(agreement, kName, signature).graphs.front(), first);
  agreement.plan.topology = "ring";
  EXPECT_NE(agreements.agree(agreement, kName, signature).graphs.front(), first);
  EXPECT_FALSE(agreements.find(kOp)->eager);  // only a direct exchange is heard of by everybody
  agreement.plan.topology = "direct";
  agreement.plan.on_trial = true;
  agreements.agree(agreement, kName, signature);
  EXPECT_FALSE(agreements.find(kOp)->eager);  // a start may bring the next plan
}

TEST(Agreements, OperationsThatAreAlikeShareTheirTemplate) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  std::uint32_t op = kOp;
  const auto graph_of = [&](const Signature& signature, const GradientPlan& plan) {
    ++op;
    return agreements.agree({"w", 0, op, plan, {}}, op, signature).graphs.front().get();
  };
  const Signature signature = signature_of(OpKind::allreduce, 100);
  const GradientPlan plan;
  const TaskGraph* const first = graph_of(signature, plan);
  EXPECT_EQ(graph_of(signature, plan), first);
  for (const auto& change : std::vector<std::function<void(Signature&, GradientPlan&)>>{
           [](Signature& s, GradientPlan&) { s.kind = OpKind::broadcast; },
           [](Signature& s, GradientPlan&) { s.shape = {50, 2}; },
           [](Signature& s, GradientPlan&) { s.dtype = DType::float64; },
           [](Signature& s, GradientPlan&) { s.op = ReduceOp::max; },
           [](Signature&, GradientPlan& p) { p.topology = "ring"; },
           [](Signature&, GradientPlan& p) { p.codec = "fp16"; },
           [](Signature&, GradientPlan& p) { p.partitions = 3; },
           [](Signature&, GradientPlan& p) { p.first_owner = 1; },
           [](Signature&, GradientPlan& p) { p.until = 9; },
       }) {
    Signature other = signature;
    GradientPlan other_plan = plan;
    change(other, other_plan);
    const TaskGraph* const graph = graph_of(other, other_plan);
    EXPECT_NE(graph, first);
    EXPECT_EQ(graph_of(signature, plan), first);
  }
  const Signature root_0 = signature_of(OpKind::broadcast, 100);
  Signature root_1 = root_0;
  root_1.root = 1;
  EXPECT_NE(graph_of(root_0, plan), graph_of(root_1, plan));
}

TEST(Agreements, AnAllgatherIsBuiltFromTheRowsOfEachRun) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  const Signature signature = signature_of(OpKind::allgather, 0);
  EXPECT_EQ(agreements.agree({"w", 0, kOp, {}, {2, 3}}, kName, signature).graphs.front()->shape.rows, 5);
  EXPECT_EQ(agreements.agree({"w", 1, kOp, {}, {4, 4}}, kName, signature).graphs.front()->shape.rows, 8);
}

TEST(Agreements, AnAlltoallIsBuiltFromWhatComesAndWhatGoes) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  const Signature signature = signature_of(OpKind::alltoall, 0);
  const Agreements::Op& op = agreements.agree({"w", 0, kOp, {}, {2, 3}}, kName, signature, {2, 5});
  EXPECT_EQ(op.graphs.front()->shape.rows, 5);
  EXPECT_EQ(op.graphs.front()->rows, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(op.graphs.front()->workflow.layout[1].input, (Range{2, 7}));   // to member 1
  EXPECT_EQ(op.graphs.front()->workflow.layout[1].output, (Range{2, 5}));  // from member 1
  EXPECT_FALSE(op.eager);
}

TEST(Agreements, AnOperationIsThatOfOneTensorOnOneSetOfTerms) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  const Signature signature = signature_of(OpKind::allreduce, 100);
  agreements.agree({"w", 0, kOp, {}, {}}, kName, signature);
  EXPECT_THROW(agreements.agree({"v", 0, kOp, {}, {}}, kName + 1, signature), CorruptPayload);
  EXPECT_THROW(agreements.agree({"w", 1, kOp, {}, {}}, kName, signature_of(OpKind::allreduce, 200)), CorruptPayload);
}

TEST(Agreements, ACodecThatCannotCarryTheTensorIsRefused) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  Agreement agreement{"w", 0, kOp, {}, {}};
  agreement.plan.codec = "onebit";
  Signature integers = signature_of(OpKind::allreduce, 8192);
  integers.dtype = DType::int32;
  EXPECT_THROW(agreements.agree(agreement, kName, integers), CorruptPayload);
}

TEST(Agreements, OnlyWhatIsNotCompressedLeavesWhatIsKept) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  const Signature signature = signature_of(OpKind::allreduce, 8192);
  Agreement agreement{"w", 0, kOp, {}, {}};
  agreement.plan.until = 5;
  EXPECT_TRUE(agreements.agree(agreement, kName, signature).graphs.front()->provisional);
  agreement.plan.codec = "onebit";  // as auto(onebit, powersgd) may choose before powersgd begins
  EXPECT_FALSE(agreements.agree(agreement, kName, signature).graphs.front()->provisional);
}

TEST(Agreements, RowsThatNoMemoryHoldsAreRefused) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  const Signature signature = signature_of(OpKind::allgather, 0);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{-1, 3}, {2, kMost}, {kMost / 9, kMost / 9}})
    EXPECT_THROW(agreements.agree({"w", 0, kOp, {}, rows}, kName, signature), CorruptPayload);
}

TEST(Agreements, AWorldOfOneIsTheIdentity) {
  Agreements agreements(0, {0}, 12 << 10);
  Agreement agreement{"w", 0, kOp, {}, {}};
  agreement.plan.codec = "onebit";
  EXPECT_TRUE(
      agreements.agree(agreement, kName, signature_of(OpKind::allreduce, 8192)).graphs.front()->codec->info().identity);
}

TEST(Agreements, KeepMessagesForTheirRun) {
  Agreements agreements(0, {0, 1}, 12 << 10);
  agreements.keep(kOp, {.peer = 1, .sequence = 0, .tag = 0, .message_id = 50});
  agreements.keep(kOp, {.peer = 1, .sequence = 1, .tag = 0, .message_id = 51});
  EXPECT_EQ(agreements.find(kOp), nullptr);  // messages alone are no agreement
  agreements.agree({"w", 0, kOp, {}, {}}, kName, signature_of(OpKind::allreduce, 100));
  EXPECT_EQ(message_ids(agreements.claim(kOp, 0)), (std::vector<std::uint64_t>{50}));
  EXPECT_TRUE(agreements.claim(kOp, 0).empty());
  EXPECT_TRUE(agreements.forget(kName + 1, 1).empty());
  EXPECT_TRUE(agreements.forget(kName, 0).empty());
  EXPECT_EQ(agreements.forget(kName, 1), (std::vector<std::uint64_t>{51}));
  EXPECT_TRUE(agreements.forget_all().empty());
}

}  // namespace
}  // namespace casync
