// The root's table of tensors: agreement, disagreement, stalls and members that left, with time passed in.
#include "engine/tensor_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <map>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kSecond = 1'000'000'000;

/// Sorts what a TensorTable decides.
struct Decided {
  std::vector<Agreement> agreements;
  std::vector<TensorTable::Started> starts;
  std::vector<Refusal> refusals;
  std::vector<std::string> reports;
  std::vector<std::vector<Rank>> missing;
  std::map<Rank, std::vector<SubmitForJoined>> for_joined;

  void note(const TensorTable::Decisions& decisions) {
    for (const TensorTable::Decision& decision : decisions) {
      std::visit([this](const auto& what) { add(what); }, decision);
    }
  }

 private:
  void add(const TensorTable::Agreed& agreed) { agreements.push_back(agreed.agreement); }
  void add(const TensorTable::Started& start) { starts.push_back(start); }
  void add(const Refusal& refusal) { refusals.push_back(refusal); }
  void add(const TensorTable::Substitute& substitute) { for_joined[substitute.member].push_back(substitute.wanted); }
  void add(const Stall& stall) {
    reports.push_back(stall.text);
    missing.push_back(stall.missing);
  }
};

/// A TensorTable whose decisions are noted.
class NotedTable {
 public:
  NotedTable(Decided& decided, std::uint32_t members)
      : decided_(decided), table_(members, {.stall_warning = 5 * kSecond, .timeout = 20 * kSecond}) {}

  void request(Rank member, const Request& request, Nanoseconds now) {
    decided_.note(table_.request(member, request, now));
  }
  void ready(Rank member, const Ready& ready, Nanoseconds now) { decided_.note(table_.ready(member, ready, now)); }
  void left(Rank member) { decided_.note(table_.left(member)); }
  void check(Nanoseconds now) { decided_.note(table_.check(now)); }
  bool waiting() const { return table_.waiting(); }
  bool incomplete(std::uint32_t op, std::uint32_t sequence) const { return table_.incomplete(op, sequence); }
  const std::vector<Lateness>& lateness() const { return table_.lateness(); }

 private:
  Decided& decided_;
  TensorTable table_;
};

class TensorTableTest : public testing::Test, protected Decided {
 protected:
  explicit TensorTableTest(std::uint32_t members = 3) : table(*this, members) {}

  static Request request(std::uint32_t sequence, std::int64_t numel = 8, const std::string& site = "train.py:1") {
    Request request;
    request.name = "w";
    request.sequence = sequence;
    request.signature.shape = {numel, 1};
    request.signature.dims = detail::concat("(", numel, ",)");
    request.signature.compression = "none";
    request.signature.topology = "auto";
    request.site = site;
    return request;
  }
  static Request join(std::uint32_t sequence) {
    Request request;
    request.name = "join";
    request.sequence = sequence;
    request.signature.kind = OpKind::join;
    return request;
  }
  void agree(std::uint32_t sequence) {
    for (std::uint32_t m = 0; m < 3; ++m) table.request(m, request(sequence), 0);
  }
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  NotedTable table;
};

TEST_F(TensorTableTest, AgreesWhenAllMembersAsked) {
  table.request(1, request(0), 0);
  table.request(0, request(0), 0);
  EXPECT_TRUE(agreements.empty());
  EXPECT_TRUE(table.waiting());
  table.request(2, request(0), 0);
  ASSERT_EQ(agreements.size(), 1U);
  EXPECT_EQ(agreements[0].name, "w");
  EXPECT_FALSE(table.waiting());
}

TEST_F(TensorTableTest, StartsAgainOnceAllAreReadyAndOneWaits) {
  agree(0);
  const std::uint32_t op = agreements[0].op;
  table.ready(2, {{op}, 1, 0}, 0);
  table.ready(0, {{op}, 1}, 0);
  EXPECT_TRUE(starts.empty());
  table.ready(1, {{op}, 1, 0}, 0);
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].sequence, 1U);
}

TEST_F(TensorTableTest, TakesSeveralOperationsOfOneReport) {
  constexpr std::uint32_t kTensors = 5;
  for (std::uint32_t t = 0; t < kTensors; ++t) {
    Request wanted = request(0);
    wanted.name = std::string(1, static_cast<char>('a' + t));
    for (Rank member = 0; member < 3; ++member) table.request(member, wanted, 0);
  }
  ASSERT_EQ(agreements.size(), kTensors);
  table.ready(2, {{0, 1, 2, 3, 4}, 1}, 0);
  table.ready(0, {{0, 2, 4}, 1}, 0);
  table.ready(1, {{1, 2, 4}, 1}, 0);
  ASSERT_EQ(starts.size(), 2U);
  EXPECT_EQ(starts[0].op, 2U);
  EXPECT_EQ(starts[1].op, 4U);
  table.ready(0, {{1, 3}, 1}, 0);
  EXPECT_EQ(starts.size(), 3U);
}

TEST_F(TensorTableTest, SaysNothingWhenNobodyWaitsForAStart) {
  agree(0);
  for (std::uint32_t m = 0; m < 3; ++m) table.ready(m, {{agreements[0].op}, 1, 0}, 0);
  EXPECT_TRUE(starts.empty());
  EXPECT_FALSE(table.waiting());
}

TEST_F(TensorTableTest, TakesAMemberThatIsOneRunAhead) {
  agree(0);
  const std::uint32_t op = agreements[0].op;
  table.ready(0, {{op}, 1}, 0);
  table.ready(1, {{op}, 1}, 0);
  table.ready(0, {{op}, 2}, 0);  // before member 2 has said a word of run 1
  table.ready(2, {{op}, 1}, 0);
  ASSERT_EQ(starts.size(), 1U);
  EXPECT_EQ(starts[0].sequence, 1U);
}

TEST_F(TensorTableTest, ShowsBothSidesOfADisagreement) {
  table.request(0, request(0, 8, "a.py:1"), 0);
  table.request(1, request(0, 9, "b.py:2"), 0);
  table.request(2, request(0, 8, "a.py:1"), 0);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].status, Status::mismatch);
  for (const char* part : {"w", "(8,)", "(9,)", "a.py:1", "b.py:2", "ranks 0 2", "rank 1"}) {
    EXPECT_TRUE(contains(refusals[0].text, part)) << part << " is not in " << refusals[0].text;
  }
  agree(1);  // and the name stays usable
  EXPECT_EQ(agreements.size(), 1U);
}

class LedgerOfMany : public TensorTableTest {
 protected:
  static constexpr std::uint32_t kMembers = 500;
  LedgerOfMany() : TensorTableTest(kMembers) {}
};

TEST_F(LedgerOfMany, SaysNoMoreThanOneCanRead) {
  for (Rank m = 0; m < kMembers; ++m) table.request(m, request(0, 8 + m, "train.py:1"), 0);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_LT(refusals[0].text.size(), 4096U);
  EXPECT_TRUE(contains(refusals[0].text, "484 more ranks or groups of ranks")) << refusals[0].text;
  for (Rank m = 1; m < kMembers; ++m) table.request(m, request(1), 0);
  table.check(6 * kSecond);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_LT(reports[0].size(), 4096U);
  EXPECT_TRUE(contains(reports[0], "483 more ranks")) << reports[0];
}

TEST_F(TensorTableTest, NamesWhatDiffers) {
  struct Case {
    std::function<void(Signature&)> change;
    const char* expected;
  };
  const std::vector<Case> cases{
      {[](Signature& s) { s.kind = OpKind::broadcast; }, "Mismatched operations"},
      {[](Signature& s) { s.dtype = DType::float64; }, "Mismatched data types"},
      {[](Signature& s) { s.op = ReduceOp::sum; }, "Mismatched reduction operation"},
      {[](Signature& s) { s.prescale = 2; }, "Mismatched prescale and/or postscale factors"},
      {[](Signature& s) { s.compression = "onebit"; }, "Mismatched compression"},
      {[](Signature& s) { s.topology = "ring"; }, "Mismatched topology"},
      {[](Signature& s) { s.priority = -4; }, "Mismatched priority 0 and -4"},
      {[](Signature& s) { s.seed = 7; }, "Mismatched seed 0 and 7"},
  };
  std::uint32_t sequence = 0;
  for (const Case& one : cases) {
    Request other = request(sequence);
    one.change(other.signature);
    table.request(0, request(sequence), 0);
    table.request(1, other, 0);
    table.request(2, request(sequence), 0);
    EXPECT_TRUE(contains(refusals.back().text, one.expected)) << refusals.back().text;
    ++sequence;
  }
}

TEST_F(TensorTableTest, LetsRowsOfAnAllgatherDiffer) {
  for (std::uint32_t m = 0; m < 3; ++m) {
    Request mine = request(0, 4 + m);
    mine.signature.kind = OpKind::allgather;
    mine.signature.dims = "(*,)";
    table.request(m, mine, 0);
  }
  ASSERT_EQ(agreements.size(), 1U);
  EXPECT_EQ(agreements[0].rows, (std::vector<std::int64_t>{4, 5, 6}));
}

TEST_F(TensorTableTest, CollectsTheSplitsOfAnAlltoall) {
  for (std::uint32_t m = 0; m < 3; ++m) {
    Request mine = request(0, 0);
    mine.signature.kind = OpKind::alltoall;
    for (std::int64_t to = 0; to < 3; ++to) mine.splits.push_back(10 * m + to);
    table.request(2 - m, mine, 0);
  }
  ASSERT_EQ(agreements.size(), 1U);
  EXPECT_EQ(agreements[0].rows, (std::vector<std::int64_t>{20, 21, 22, 10, 11, 12, 0, 1, 2}));
}

TEST_F(TensorTableTest, HoldsTheTrailingShapesOfAnAllgatherAlike) {
  for (std::uint32_t m = 0; m < 3; ++m) {
    Request mine = request(0, 4);
    mine.signature.kind = OpKind::allgather;
    mine.signature.shape.cols = 6;
    mine.signature.dims = m == 1 ? "(*, 2, 3)" : "(*, 3, 2)";
    table.request(m, mine, 0);
  }
  EXPECT_TRUE(agreements.empty());
  ASSERT_FALSE(refusals.empty());
  for (const char* part : {"(*, 2, 3)", "(*, 3, 2)"}) EXPECT_TRUE(contains(refusals.back().text, part)) << part;
}

TEST_F(TensorTableTest, ReportsAStallOnceWithMissingRanksAndSites) {
  table.request(0, request(0, 8, "a.py:1"), 0);
  table.check(4 * kSecond);
  EXPECT_TRUE(reports.empty());
  table.check(5 * kSecond);
  table.check(6 * kSecond);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(missing[0], (std::vector<std::uint32_t>{1, 2}));
  for (const char* part : {"tensor w", "missing ranks: 1 2", "rank 0 submitted it at a.py:1"}) {
    EXPECT_TRUE(contains(reports[0], part)) << part << " is not in " << reports[0];
  }
}

TEST_F(TensorTableTest, GivesUpAfterTheTimeoutAndTellsWhoComesLate) {
  table.request(0, request(0), 0);
  table.request(1, request(0), 0);
  table.check(20 * kSecond);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].status, Status::timeout);
  EXPECT_TRUE(contains(refusals[0].text, "missing ranks: 2"));
  table.request(0, request(1), 21 * kSecond);  // the others go on
  table.request(2, request(0), 22 * kSecond);
  ASSERT_EQ(refusals.size(), 2U);
  EXPECT_EQ(refusals[1].sequence, 0U);
  table.request(1, request(1), 23 * kSecond);
  table.request(2, request(1), 23 * kSecond);
  EXPECT_EQ(agreements.size(), 1U);
}

TEST_F(TensorTableTest, RefusesWhatAMemberThatLeftNeverSubmitted) {
  table.request(0, request(0), 0);
  table.left(2);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_EQ(refusals[0].status, Status::aborted);
  EXPECT_TRUE(contains(refusals[0].text, "rank 2 has shut down"));
  table.request(1, request(0), 0);  // told again
  EXPECT_EQ(refusals.size(), 2U);
  table.request(1, request(1), 0);  // later runs cannot happen either
  EXPECT_EQ(refusals.back().sequence, 1U);
}

/// A rank reports each run of a tensor once. A second report would stand for a rank that has said nothing yet, or open
/// a run anew that is over.
TEST_F(TensorTableTest, TakesEachRunOfAMemberOnce) {
  const auto refused = [this](const auto& message) {
    try {
      if constexpr (std::is_same_v<std::decay_t<decltype(message)>, Ready>) {
        table.ready(1, message, 0);
      } else {
        table.request(1, message, 0);
      }
    } catch (const CorruptPayload& error) {
      for (const char* part : {"rank 1", "tensor w", "twice"})
        EXPECT_TRUE(contains(error.what(), part)) << error.what();
      return true;
    }
    return false;
  };
  table.request(1, request(0), 0);
  EXPECT_TRUE(refused(request(0)));
  table.request(0, request(0), 0);
  EXPECT_TRUE(agreements.empty()) << "two ranks of three have asked";
  table.request(2, request(0), 0);
  ASSERT_EQ(agreements.size(), 1U);
  EXPECT_TRUE(refused(request(0))) << "the run is over";
  EXPECT_FALSE(table.waiting());

  const std::uint32_t op = agreements[0].op;
  table.ready(1, {{op}, 1}, 0);
  EXPECT_TRUE(refused(Ready{{op}, 1}));
  table.ready(0, {{op}, 1}, 0);
  EXPECT_TRUE(starts.empty()) << "two ranks of three are ready";
  table.ready(2, {{op}, 1}, 0);
  EXPECT_EQ(starts.size(), 1U);
  EXPECT_TRUE(refused(Ready{{op}, 1})) << "the run is over";

  table.ready(1, {{op}, 2}, 0);
  table.left(2);  // refuses the run, of which whoever comes late is told; rank 1 was
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_TRUE(refused(Ready{{op}, 2}));
  EXPECT_EQ(refusals.size(), 1U);
}

// --- join ---

TEST_F(TensorTableTest, AsksWhoHasJoinedOnceAllOthersHaveSubmitted) {
  table.request(2, join(0), 0);
  table.request(0, request(0), 0);
  EXPECT_TRUE(for_joined.empty()) << "rank 1 has neither submitted nor joined";
  table.request(1, request(0), 0);
  ASSERT_EQ(for_joined[2].size(), 1U);
  EXPECT_EQ(for_joined[2][0].name, "w");
  EXPECT_FALSE(for_joined[2][0].refused);
  EXPECT_TRUE(agreements.empty());
  table.request(2, request(0), 0);
  ASSERT_EQ(agreements.size(), 1U);

  table.ready(0, {{agreements[0].op}, 1}, 0);
  table.request(1, join(0), 0);  // whoever joins later is asked, too
  EXPECT_EQ(for_joined[1].size(), 1U);
  ASSERT_EQ(for_joined[2].size(), 2U);
  EXPECT_EQ(for_joined[2][1].sequence, 1U);
}

TEST_F(TensorTableTest, EndsTheJoinWithTheLastRank) {
  table.request(2, join(0), 0);
  table.request(0, join(0), 0);
  EXPECT_TRUE(agreements.empty());
  table.request(1, join(0), 0);
  ASSERT_EQ(agreements.size(), 1U);
  EXPECT_EQ(agreements[0].rows, std::vector<std::int64_t>{1});
  table.request(0, request(0), 0);
  table.request(1, request(0), 0);
  EXPECT_TRUE(for_joined.empty()) << "nobody has joined any more";
}

TEST_F(TensorTableTest, RefusesWhatCannotGoOnWithoutARank) {
  for (const OpKind kind : {OpKind::allgather, OpKind::broadcast}) {
    Request other = request(0);
    other.name = name_of(kind);
    other.signature.kind = kind;
    if (kind == OpKind::allgather) table.request(2, join(0), 0);
    refusals.clear();
    table.request(0, other, 0);
    ASSERT_EQ(refusals.size(), 1U);
    EXPECT_EQ(refusals[0].status, Status::mismatch);
    for (const char* part : {kind == OpKind::allgather ? "Allgather" : "Broadcast",
                             " is not supported with Join at this time.", "waits for rank 2"}) {
      EXPECT_TRUE(contains(refusals[0].text, part)) << refusals[0].text;
    }
    table.request(1, other, 0);
    EXPECT_EQ(refusals.size(), 2U) << "whoever comes late is told";
    ASSERT_EQ(for_joined[2].size(), kind == OpKind::allgather ? 1U : 2U);
    EXPECT_TRUE(for_joined[2].back().refused) << "rank 2 counts the run";
  }
}

TEST_F(TensorTableTest, TellsWhoJoinsOfTheRunsThatWereRefusedWithoutIt) {
  table.request(0, request(0), 0);
  table.check(20 * kSecond);
  ASSERT_EQ(refusals.size(), 1U);
  table.request(2, join(0), 20 * kSecond);
  ASSERT_EQ(for_joined[2].size(), 1U);
  EXPECT_TRUE(for_joined[2][0].refused);
  table.request(0, request(1), 21 * kSecond);
  table.request(1, request(0), 21 * kSecond);  // late, and told again
  table.request(1, request(1), 21 * kSecond);
  ASSERT_EQ(for_joined[2].size(), 2U);
  EXPECT_EQ(for_joined[2][1].sequence, 1U);
}

TEST_F(TensorTableTest, FindsADisagreementOfTheOthers) {
  table.request(2, join(0), 0);
  table.request(0, request(0, 8, "a.py:1"), 0);
  table.request(1, request(0, 9, "b.py:2"), 0);
  ASSERT_EQ(refusals.size(), 1U);
  for (const char* part : {"Mismatched", "(8,)", "(9,)", "a.py:1", "b.py:2"}) {
    EXPECT_TRUE(contains(refusals[0].text, part)) << refusals[0].text;
  }
}

TEST_F(TensorTableTest, LetsAJoinWaitAsLongAsAnythingIsSubmitted) {
  table.request(2, join(0), 0);
  for (std::uint32_t sequence = 0; sequence < 10; ++sequence) {
    const Nanoseconds now = 4 * kSecond * sequence;
    table.request(0, request(sequence), now);
    table.request(1, request(sequence), now);
    table.request(2, request(sequence), now);
    table.check(now);
  }
  EXPECT_TRUE(refusals.empty() && reports.empty());
  table.check(56 * kSecond);
  ASSERT_EQ(refusals.size(), 1U);
  EXPECT_TRUE(contains(refusals[0].text, "tensor join")) << refusals[0].text;
  EXPECT_TRUE(contains(refusals[0].text, "missing ranks: 0 1\n")) << refusals[0].text;
}

TEST_F(TensorTableTest, SaysWhoOfTheMissingHasJoined) {
  table.request(2, join(0), 0);
  table.request(0, request(0), 0);
  table.check(5 * kSecond);
  ASSERT_EQ(reports.size(), 2U);
  EXPECT_TRUE(contains(reports[0] + reports[1], "missing ranks: 1 2 (has joined)"));
}

/// Processor seconds that one report takes in a world of `members` in which nobody has left or joined: the least of
/// some tries, which other programs disturb less than the mean.
double seconds_per_report(std::uint32_t members) {
  constexpr std::uint32_t kReports = 1U << 16U;
  Request request;
  request.name = "w";
  request.signature.shape = {8, 1};
  std::size_t starts = 0;
  TensorTable table(members, {});
  for (std::uint32_t m = 0; m < members; ++m) table.request(m, request, 0);
  double least = std::numeric_limits<double>::max();
  std::uint32_t sequence = 0;
  for (int tries = 0; tries < 3; ++tries) {
    std::timespec begin{};
    std::timespec end{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (std::uint32_t run = 0; run < kReports / members; ++run) {
      ++sequence;
      for (Rank m = 0; m < members; ++m) starts += table.ready(m, {{0}, sequence}, 0).size();
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    const double seconds =
        static_cast<double>(end.tv_sec - begin.tv_sec) + 1e-9 * static_cast<double>(end.tv_nsec - begin.tv_nsec);
    least = std::min(least, seconds / kReports);
  }
  EXPECT_EQ(starts, sequence);
  return least;
}

TEST(LedgerCost, OfAReportDoesNotGrowWithTheWorld) {
  const double small = seconds_per_report(64);
  const double large = seconds_per_report(4096);
  EXPECT_LT(large, 8 * small) << small * 1e9 << " ns per report with 64 members, " << large * 1e9 << " ns with 4096";
}

TEST_F(TensorTableTest, RefusesAnOperationThatWasNeverAgreed) {
  EXPECT_THROW(table.ready(1, {{77}, 0}, 0), CorruptPayload);
}

}  // namespace
}  // namespace casync
