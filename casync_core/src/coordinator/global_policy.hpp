#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "casync/coordinator.hpp"
#include "coordinator/link_policy.hpp"
#include "coordinator/slots.hpp"

namespace casync {

/// The paper's global coordinator (section 3.2, figure 3). Every rank cuts what waits for one of its links into
/// batches, and asks rank 0 for each. Rank 0 grants them slot by slot (Slots). A rank sends one batch after the other.
///
/// A batch is asked for when it is full or when its first message has waited for `timeout`. Until it leaves, further
/// messages join it as long as there is room. Leave is given for a link, not for a batch: the one whose messages have
/// the highest priority goes.
///
/// Nobody waits for an answer while others do not stand in the way. A rank that rests sends its first batch to the next
/// rank (rank + 1) unasked: these links share no end. While one batch is on its way the next one is granted.
class GlobalPolicy final : public LinkPolicy {
 public:
  GlobalPolicy(Rank member, Rank members, CoordinatorOptions options);

  void add(const SendRequest& request) override;
  void sent(Rank peer, std::uint64_t bytes) override;
  void control(Rank peer, std::span<const std::byte> message) override;
  void decide(Nanoseconds now, Outcome& outcome) override;
  std::size_t queued() const override { return queued_; }
  /// Without rank 0 there is no coordination: what is left goes when it is ready.
  void left(Rank peer) override;
  std::optional<Nanoseconds> wakes_at() const override;

 private:
  enum class Kind : std::uint32_t { asked, opened, granted, left };
  struct Message {
    Kind kind;
    Rank peer;  // the link's receiver
  };
  struct Batch {
    Outcome::Batch sends;
    std::uint64_t bytes = 0;
    std::int32_t priority = 0;           // the highest of its messages
    std::optional<Nanoseconds> since{};  // set by the first decide that sees it
    bool full = false;                   // of one peer all are but one
  };
  struct Waiting {
    std::deque<Batch> batches;  // by priority
    std::size_t asked = 0;      // how many of them rank 0 was asked for
  };
  bool ripe(const Batch& batch, Nanoseconds now) const;
  bool rests() const { return under_way_ == 0 && asked_ == 0 && granted_.empty(); }
  Rank next_rank() const { return static_cast<Rank>((member_ + 1U) % members_); }
  void ask(Nanoseconds now, Outcome& outcome);
  void release(Rank peer, Outcome& outcome);
  void tell(Rank peer, const Message& message);
  void on_message(Rank from, const Message& message);

  Rank member_;
  Rank members_;
  CoordinatorOptions options_;
  bool uncoordinated_ = false;
  Nanoseconds decided_at_ = 0;
  // As a sender.
  std::vector<Waiting> waiting_;  // per peer
  std::size_t queued_ = 0;        // messages in all of them
  std::size_t asked_ = 0;         // batches that rank 0 has not granted yet
  std::deque<Rank> granted_;      // peers, in the order in which their batches go
  std::size_t under_way_ = 0;     // messages left of the batch that is on its way
  std::vector<std::pair<Rank, Message>> outgoing_;
  std::optional<Slots> slots_;  // rank 0's
};

}  // namespace casync
