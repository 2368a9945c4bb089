#pragma once

#include <cstddef>
#include <optional>

#include "casync/types.hpp"

namespace casync {

/// Whether an operation costs messages, not bytes: an allreduce of what a head has room for.
inline bool is_small(OpKind kind, std::size_t bytes, std::size_t inline_bytes) {
  return kind == OpKind::allreduce && bytes <= inline_bytes;
}

/// Decides when a submit is taken up, and by whom: wake-up conditions 4 and 5 of docs/concurrency.md. Pure: time is
/// passed in.
///
/// Gradients that come one by one out of a backward pass go out as they come: the thread that submits takes a turn
/// itself if nobody has had one lately, because a core that is busy with the backward pass may not give the background
/// thread its turn for several ms. Small operations cost messages, not bytes, so while no others are outstanding they
/// wait for company: until their submitter waits for one of them, or for kHold. One that nobody will wait for, because
/// it has a completion, is as urgent as a gradient.
class SubmitPolicy {
 public:
  static constexpr Nanoseconds kStale = 50'000;    ///< without a turn, when gradients are submitted
  static constexpr Nanoseconds kHold = 1'000'000;  ///< of a small operation, if its submitter goes on submitting
  static constexpr Nanoseconds kRest = 1'000'000;  ///< of the background thread, after a small submit or a wait

  struct Advice {
    bool turn = false;     ///< the thread that submits takes a turn now
    Nanoseconds rest = 0;  ///< how long the background thread leaves progress to that thread
  };
  /// `alone`: in a world of one a turn would be the whole operation, and no submit asynchronous, so it is never
  /// advised.
  explicit SubmitPolicy(bool alone = false) : alone_(alone) {}
  /// An operation was submitted; `only_small`: it is small, and so are all that are outstanding; `awaited`: the
  /// program comes back for it, and then sees to it itself.
  Advice submitted(Nanoseconds now, bool only_small, bool awaited = true);
  /// A turn has taken up everything that was submitted.
  void taken(Nanoseconds now);

 private:
  bool alone_;
  Nanoseconds last_turn_ = -kStale;
  std::optional<Nanoseconds> held_since_;  // the first submit since the last turn
};

}  // namespace casync
