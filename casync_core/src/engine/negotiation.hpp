#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "engine/agreements.hpp"
#include "engine/ledger.hpp"
#include "engine/outbox.hpp"
#include "engine/submissions.hpp"
#include "plan/planning.hpp"

namespace casync {

/// The way from a submit to the moment at which every rank begins the run, on the same terms and by the same plan.
///
/// A name that is new asks the root by a Request, one that is known by Ready; the root's Ledger and Planning answer all
/// ranks in one order, by a Verdict, a Start or a Refuse. Small operations that are known ask nobody: they begin at
/// once, as long as their messages under way are within `eager_bytes`. Pure: the clock is passed in.
class Negotiation {
 public:
  struct Options {
    std::uint32_t member = 0;
    std::uint32_t members = 1;
    std::size_t eager_bytes = 0;
    Ledger::Options ledger;
  };
  /// What became of runs that are submitted here; called during the calls below.
  struct Outcomes {
    std::function<void(std::uint32_t run)> begin;  ///< Run::op says as what
    std::function<void(std::uint32_t run, const Refuse& why)> refuse;
  };
  Negotiation(const Options& options, Submissions& submissions, Agreements& agreements, Planning& planning, Outbox& out,
              Outcomes outcomes);

  void define(Request definition);
  /// This rank has submitted `run`, whose rows (allgather) or splits (alltoall) are filled in.
  void submit(std::uint32_t run, Nanoseconds now);
  /// A run that was submitted here is over.
  void ended(std::uint32_t run);

  // From other ranks to the root.
  void hear(std::uint32_t peer, const Request& request, Nanoseconds now) { ledger_.request(peer, request, now); }
  void hear(std::uint32_t peer, const Ready& ready, Nanoseconds now) { ledger_.ready(peer, ready, now); }
  void hear(std::uint32_t peer, const Costs& costs);
  void left(std::uint32_t peer);
  /// Looks for runs that some rank never submits.
  void check(Nanoseconds now);
  /// Per member, on the root; empty elsewhere.
  std::span<const Lateness> lateness() const { return is_root() ? ledger_.lateness() : std::span<const Lateness>(); }
  // From the root to all.
  void hear(const Verdict& verdict);
  void hear(const Start& start);
  void hear(const Refuse& refuse);
  // From the root to a rank that has joined.
  void hear(const StandIn& wanted);

 private:
  bool is_root() const { return options_.member == 0; }
  Ledger::Decisions decisions();
  void check_rows(const Verdict& verdict, std::int64_t submitted) const;
  void tell_columns(Verdict verdict);
  void tell_each(Refuse refuse);
  void check_last(const Verdict& verdict) const;
  bool ahead(const Submissions::Run& run) const;
  bool tell_new_plan(const Start& start);
  void drop_early(std::uint32_t name, std::uint32_t sequence);
  void tell_costs(std::uint32_t run);
  template <typename Message>
  void to_root(const Message& message, Nanoseconds now) {
    if (is_root()) {
      hear(0, message, now);
    } else {
      out_.tell(0, message);
    }
  }

  Options options_;
  Submissions& submissions_;
  Agreements& agreements_;
  Planning& planning_;
  Outbox& out_;
  Outcomes outcomes_;
  Ledger ledger_;
  std::size_t eager_bytes_ = 0;  // of eager messages under way
  bool joined_ = false;          // this rank, and not all yet
};

}  // namespace casync
