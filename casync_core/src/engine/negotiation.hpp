#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/agreements.hpp"
#include "engine/held_back.hpp"
#include "engine/outbox.hpp"
#include "engine/submissions.hpp"
#include "engine/tensor_table.hpp"

namespace casync {

/// The way from a submit to the moment at which every rank begins the run, on the same terms and by the same plan.
///
/// A name that is new asks the root by a Request, one that is known by Ready; the root's TensorTable and Planning
/// answer all ranks in one order, by an Agreement, a Start or a Refusal. Small operations that are known ask nobody:
/// they begin at once, as long as their messages under way are within `eager_bytes`. Pure: the clock is passed in.
///
/// What becomes ready in one turn is one Ready, and what the root starts in one turn is one Start to each rank. Among
/// many ranks even that is much for the root, so there the next one waits until `interval` after the last. What one
/// Start names begins by priority.
///
/// Memory is for what has begun, in that order. So where priorities differ the root starts no more than it has memory
/// for, the highest first: what comes late may still go before the rest.
///
/// What was not used for long is evicted by all ranks alike, and asks again. It costs no message;
/// docs/internals/engine.md says why nothing that is under way is lost.
class Negotiation {
 public:
  struct Options {
    std::uint32_t member = 0;
    std::uint32_t members = 1;
    std::size_t eager_bytes = 0;
    Nanoseconds interval = 0;  ///< as interval_for says, but for tests
    TensorTable::Options tensor_table;
  };
  /// What becomes of a run that is submitted here: it begins, Run::op says as what, or it is refused.
  struct Outcome {
    std::uint32_t run = 0;
    std::optional<Refusal> refused{};
  };
  using Outcomes = std::vector<Outcome>;

  Negotiation(const Options& options, Submissions& submissions, Agreements& agreements, Outbox& out);

  /// A run that was submitted here is over.
  void ended(std::uint32_t run);
  /// What things cost on this rank.
  void costs_known(std::span<const std::byte> costs);
  /// What they cost on another one.
  void hear(Rank peer, const Costs& costs);
  /// Each operation asks for its plan once more, before its next run.
  void plans_changed() { ++plans_changed_; }
  /// When `speak` is to be called at the latest. Nothing: there is nothing to say.
  std::optional<Nanoseconds> wakes_at() const {
    if (!is_root()) return reports_.wakes_at();
    return ranked_.empty() || lacks_memory_ ? starts_.wakes_at() : std::optional(starts_.next());
  }
  /// The least time between two messages of a rank to the root of what is ready, and of the root to the ranks of what
  /// starts: none among up to 16 ranks, where both leave with the turn. Beyond, a rank speaks to the root as often as
  /// would take a fifth of the root's time at 2 us a message, and at least every 5 ms.
  static Nanoseconds interval_for(std::uint32_t members);
  /// Asks for the plans for which runs wait since the last call.
  void want_plans();
  /// On the root: whether ranks stand in for their programs now.
  bool someone_joined() const { return is_root() && table_.someone_joined(); }
  /// Per member, on the root; empty elsewhere.
  std::span<const Lateness> lateness() const { return is_root() ? table_.lateness() : std::span<const Lateness>(); }

  // What these return is to be carried out in its order, and is valid until the next of them is called.

  /// This rank has submitted `run`, whose rows (allgather) or splits (alltoall) are filled in.
  const Outcomes& submit(std::uint32_t run, Nanoseconds now);
  /// From another rank to the root.
  template <typename Report>
  const Outcomes& hear(Rank peer, const Report& report, Nanoseconds now) {
    outcomes_.clear();
    now_ = now;
    announce(enter(peer, report, now));
    return outcomes_;
  }
  /// From the root: an Agreement, a Start, a Refusal, or, to a rank that has joined, a SubmitForJoined.
  template <typename Answer>
  const Outcomes& hear(const Answer& answer) {
    outcomes_.clear();
    take(answer);
    return outcomes_;
  }
  const Outcomes& planned(std::span<const event::Planned::Plan> plans, Nanoseconds now);
  const Outcomes& left(Rank peer, Nanoseconds now);
  /// Tells what was held back, if it is due. At the end of a turn, before what begins is carried on. `free_bytes`: of
  /// this rank's memory, for operations that begin.
  const Outcomes& speak(Nanoseconds now, std::size_t free_bytes);
  /// Tells it at once: this rank leaves.
  const Outcomes& goodbye(Nanoseconds now);
  /// Looks for runs that some rank never submits.
  const Outcomes& check(Nanoseconds now);
  /// A run that waits for its plan, on the root.
  struct Unplanned {
    TensorTable::Decision decision;
    std::string name;
    OpKind kind = OpKind::allreduce;
    Nanoseconds since = 0;
    bool has_warned = false;
  };
  /// The one that has waited longest; null: none waits.
  Unplanned* longest_unplanned();
  /// Has all of them wait since `now`: nobody looked for a while.
  void restart_unplanned(Nanoseconds now);

 private:
  bool is_root() const { return options_.member == 0; }
  const TensorTable::Decisions& enter(Rank peer, const Request& request, Nanoseconds now) {
    return table_.request(peer, request, now);
  }
  const TensorTable::Decisions& enter(Rank peer, const Ready& ready, Nanoseconds now) {
    return table_.ready(peer, ready, now);
  }
  void announce(const TensorTable::Decisions& decisions);
  void announce(const TensorTable::Agreed& agreed);
  void announce(const TensorTable::Started& started);
  void announce(const Refusal& refusal);
  void announce(const TensorTable::Substitute& substitute);
  void announce(const Stall& stall);
  void tell(const TensorTable::Agreed& agreed, const GradientPlan& plan);
  void tell(const TensorTable::Started& started);
  void tell(const TensorTable::Started& started, const std::optional<GradientPlan>& plan);
  void tell_anew(const TensorTable::Started& started, const GradientPlan& plan);
  void tell_reports();
  void tell_starts();
  void start(const TensorTable::Started& started);
  void start_ranked(std::size_t free_bytes);
  struct Known {
    std::uint32_t number;
    const Agreements::Op* op;
  };
  void take(const Agreement& agreement);
  void take(const Start& start);
  void take(const Known& known, const Start& start);
  void take(const Refusal& refusal);
  void take(const SubmitForJoined& wanted);
  void check_rows(const Agreement& agreement, std::int64_t submitted) const;
  void tell_columns(Agreement agreement);
  void tell_each(Refusal refusal);
  void check_last(const Agreement& agreement) const;
  bool ahead(const Submissions::Run& run) const;
  void want_plan(std::uint32_t op, const std::string& name, const Signature& signature, std::uint32_t step,
                 TensorTable::Decision decision);
  bool wants_new_plan(std::uint32_t op, std::uint32_t step);
  void collect(Rank member, std::span<const std::byte> costs);
  void drop_early(std::uint32_t name, std::uint32_t sequence);
  void restore(const Agreement& agreement);
  void use(std::uint32_t op, std::uint64_t name_hash);
  void tidy();
  Options options_;
  Submissions& submissions_;
  Agreements& agreements_;
  Outbox& out_;
  TensorTable table_;
  HeldBack<Ready> reports_;  // to the root
  HeldBack<Start> starts_;   // of the root
  struct Ranked {
    std::int32_t priority;
    TensorTable::Started started;
  };
  std::deque<Ranked> ranked_;    // of the root: to be started, when there is memory
  bool lacks_memory_ = false;    // and at the last `speak` there was none
  std::vector<Known> started_;   // scratch
  Outcomes outcomes_;            // of the last call
  Nanoseconds now_ = 0;          // of the last call
  std::size_t eager_bytes_ = 0;  // of eager messages under way
  bool joined_ = false;          // this rank, and not all yet
  std::uint32_t evictions_ = 0;
  std::vector<std::uint32_t> evicted_;  // operations that are not forgotten yet

  // Of the root: plans.
  std::vector<action::PlanWanted::Gradient> wanted_;
  std::unordered_map<std::uint32_t, Unplanned> unplanned_;  // by operation: what waits for its plan
  std::unordered_map<std::uint32_t, std::uint32_t> asked_;  // per operation: plans_changed_, then
  std::uint32_t plans_changed_ = 0;                         // how often
  std::vector<bool> costs_told_;                            // per member
};

}  // namespace casync
