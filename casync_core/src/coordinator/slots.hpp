#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// The way from one rank to another.
struct Link {
  Rank from = 0;
  Rank to = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// What rank 0 decides as the global coordinator: time is sliced into slots, and each slot grants a set of links, a
/// batch on each (paper: section 3.2). Pure; it knows nothing of sizes, for the ranks cut batches of one size.
///
/// Of the links of one slot no two have the same sender, and no two the same receiver. There are as many of them as the
/// ends that are free allow. Batches that have waited longer go first.
///
/// The next slot is granted while the one before is on its way, so that nobody waits for a message between two batches.
/// So a sender has at most kAhead batches granted, and sends one after the other. A sender that rests is granted only a
/// receiver that rests; one that sends may be granted a receiver that will have got its batch by then.
class Slots {
 public:
  static constexpr std::uint32_t kAhead = 2;  ///< batches granted to one end: one on its way and the one after it

  explicit Slots(Rank members);

  /// A batch waits for `link`.
  void ask(Link link);
  /// A batch went over `link` unasked. False: the sender has another one on its way, so it must have asked.
  bool opened(Link link);
  /// A batch that was granted, or opened, has left its sender. False: there is none.
  bool left(Link link);
  /// `rank` is gone: nothing of what it asked for or sends is waited for.
  void forget(Rank rank);

  /// The links of the next slot; none: nothing waits, or no two ends are free.
  std::vector<Link> next();
  /// Whether anything has happened since `next` found nothing to grant.
  bool due() const { return due_; }

 private:
  struct Queue {
    std::deque<std::uint64_t> asked;  // when, by the count of asks
    std::uint32_t granted = 0;
  };
  Queue& queue(Link link) { return queues_[std::size_t{link.from} * members_ + link.to]; }
  const Queue& queue(Link link) const { return queues_[std::size_t{link.from} * members_ + link.to]; }
  bool may_go(Link link) const;
  std::vector<Rank> receivers_of(Rank from) const;
  bool match(Rank from, std::vector<Rank>& sender_of, std::vector<bool>& tried) const;

  Rank members_;
  bool due_ = false;
  std::uint64_t asks_ = 0;
  std::vector<Queue> queues_;           // per link
  std::vector<std::uint32_t> sending_;  // per rank: batches granted to it
  std::vector<std::uint32_t> getting_;  // per rank: batches granted that it receives
};

}  // namespace casync
