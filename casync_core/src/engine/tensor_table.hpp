#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "casync/metrics.hpp"
#include "common/numbered.hpp"
#include "engine/control.hpp"

namespace casync {

/// The root's table of who submitted which tensor: agreement, one order of starts, stalls. Pure: time is passed in.
///
/// A run of a tensor is (name, sequence). Each signature that a name is reported with is a *variant* of it, whose
/// number is that of the operation which it is if the ranks agree. When all members have reported a run, the table
/// decides: all the same variant, it starts (as Agreed if somebody asked by Request, else as Started); else it is
/// refused, with the signatures of both sides.
///
/// A member that has reported a join stands in for its program, with zeros, in what all who have not joined submit,
/// until all have joined. What a stand-in cannot take part in is refused.
///
/// What the ranks no longer keep (Agreements) is forgotten here when every member is known to have evicted it, because
/// until then a report of it may be on its way; and when no run of it is open. Variants that were refused are
/// forgotten with their run.
class TensorTable {
 public:
  struct Agreed {         ///< all members are told: it begins, as a new operation or with other rows than before
    Agreement agreement;  ///< without a plan
    Signature signature;
  };
  struct Started {  ///< all members are told: run `sequence` of `op` begins
    std::uint32_t op = 0;
    std::uint32_t sequence = 0;
    Settled settled = 0;     ///< what all ranks say; 0 where they differ
    std::uint32_t step = 0;  ///< the highest count
    bool by_lane = false;    ///< whether all say it
  };
  struct Substitute {  ///< a member that has joined is told
    Rank member = 0;
    SubmitForJoined wanted;
  };
  /// What follows from a report, or from time: a Refusal goes to all members, a Stall to the user's log.
  using Decision = std::variant<Agreed, Started, Refusal, Substitute, Stall>;
  using Decisions = std::vector<Decision>;
  struct Options {
    Nanoseconds stall_warning = 60'000'000'000;
    Nanoseconds timeout = 600'000'000'000;
  };

  TensorTable(std::uint32_t members, Options options);

  // What these return is valid until the next of them is called.

  /// Both throw CorruptPayload, naming member and tensor, for a run that the member has reported before.
  const Decisions& request(Rank member, const Request& request, Nanoseconds now);
  const Decisions& ready(Rank member, const Ready& ready, Nanoseconds now);
  /// All ranks keep `op` no longer: it is the next one that they evict.
  void evict(std::uint32_t op);
  /// They agree on `op` anew.
  void restore(std::uint32_t op);
  /// Whether a report may still name `op`.
  bool knows(std::uint32_t op) const { return ops_.find(op) != nullptr; }
  /// Forgets what can be, but of what was evicted nothing for which `is_pending` holds. Between any two calls of the
  /// others.
  void tidy(const std::function<bool(std::uint32_t op)>& is_pending);
  /// Whether some member has reported run `sequence` of `op` and another one has not.
  bool incomplete(std::uint32_t op, std::uint32_t sequence) const;
  /// The member left: runs it has not reported cannot happen, now or later.
  const Decisions& left(Rank member);
  /// Reports runs that wait longer than stall_warning (once each) and refuses those that wait longer than the timeout.
  const Decisions& check(Nanoseconds now);
  bool waiting() const { return open_ > 0; }
  bool someone_joined() const { return joined_count_ > 0; }
  /// Per member. Joins do not count, which wait for as long as there is work elsewhere.
  const std::vector<Lateness>& lateness() const { return lateness_; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;
  struct Variant {  // by number
    std::uint32_t entry;
    Signature signature;
    bool agreed = false;
  };
  struct Evicted {
    std::uint32_t op;
    std::uint32_t count;  // how many were, with this one
  };
  struct Run {
    std::uint32_t sequence = 0;
    std::uint32_t count = 0;
    bool requested = false;
    bool wants_start = false;
    bool warned = false;
    bool joins = false;
    Settled settled = 0;   // of all who have reported
    bool by_lane = false;  // of all who have reported
    std::uint32_t step = 0;
    Nanoseconds since = 0;
    std::vector<std::uint32_t> variants;  // per member: the one that it has reported, or kNone
    std::vector<bool> asked;              // per member: to stand in
    std::vector<std::int64_t> rows;       // per member; alltoall: per member and the one it gives them to
  };
  struct TensorEntry {
    std::string name;
    std::vector<std::uint32_t> known;     // operations
    std::vector<std::string> sites;       // per member
    std::vector<std::uint32_t> reported;  // per member: runs below this one
    std::array<Run, 2> runs{};            // a rank is at most one run ahead of another
    std::vector<Refusal> refused{};       // runs refused before all reported: whoever comes late is told too
  };
  void note_report(TensorEntry& entry, std::uint32_t member, std::uint32_t sequence);
  void record(Rank member, std::uint32_t op, const Ready& ready, Nanoseconds now);
  void note_rows(Run& run, std::uint32_t member, const Request& request) const;
  Run& open(TensorEntry& entry, std::uint32_t sequence, Nanoseconds now);
  bool refuse_again(TensorEntry& entry, std::uint32_t sequence);
  /// What a member says of its run beside the variant.
  struct Report {
    Settled settled = 0;
    std::uint32_t step = 0;
    bool by_lane = false;
  };
  void record(TensorEntry& entry, Run& run, std::uint32_t member, std::uint32_t variant, const Report& report);
  void decide(TensorEntry& entry, Run& run, std::uint32_t last);
  bool refuse_without_leavers(TensorEntry& entry, Run& run, std::uint32_t member);
  void join(std::uint32_t member);
  void end_join();
  void ask_stand_ins(TensorEntry& entry, Run& run);
  void skip_joined(TensorEntry& entry, std::uint32_t member, std::uint32_t sequence);
  void refuse(TensorEntry& entry, Run& run, Status status, std::string text, ErrorFacts facts,
              std::vector<std::uint32_t> peers = {});
  void refuse_disagreement(TensorEntry& entry, Run& run);
  void close(Run& run);
  bool uses(const TensorEntry& entry, std::uint32_t op) const;
  void forget(std::uint32_t op);
  const Signature& signature_of(std::uint32_t op) const { return ops_[op].signature; }
  std::string disagreement(const TensorEntry& entry, const Run& run) const;
  std::vector<std::uint32_t> others(const Run& run) const;
  Stall stall(const TensorEntry& entry, const Run& run, Nanoseconds now) const;
  std::string place_of(const TensorEntry& entry, std::uint32_t member) const;

  std::uint32_t members_;
  Options options_;
  Numbered<TensorEntry> entries_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
  Numbered<Variant> ops_;
  std::vector<Evicted> evicted_;       // and not forgotten yet
  std::uint32_t evictions_ = 0;        // in all
  std::vector<std::uint32_t> heard_;   // per member: of how many evictions it has told
  std::vector<std::uint32_t> untidy_;  // entries of which something may be forgotten
  std::vector<bool> left_;
  std::vector<bool> joined_;
  // How many have. While it is none, which is nearly always, a report looks at no other member: rank 0 hears one from
  // each rank for each gradient in every step.
  std::uint32_t left_count_ = 0;
  std::uint32_t joined_count_ = 0;
  Nanoseconds last_report_ = 0;
  std::vector<Lateness> lateness_;
  std::uint32_t open_ = 0;
  Decisions decided_;  // in the last call
};

/// "float32 (64, 3, 7, 7), op Average, codec onebit": the terms of a rank, for messages.
std::string describe(const Signature& signature);

}  // namespace casync
