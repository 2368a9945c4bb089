#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "coordinator/link_policy.hpp"

namespace casync {

/// The paper's global coordinator (section 3.2, figure 3). Every rank reports the sizes and destinations in its Q_commu
/// to rank 0, which keeps a queue per link, releases a batch on some of them (when it reaches `batch_bytes` or its
/// oldest message is `max_delay` old), and tells the senders. In the paper no two of these links share a sender or a
/// receiver. Here each rank may have up to `depth` batches under way each way, so that planning one overlaps with
/// transmitting the one before; two links may thus share an end.
class GlobalPolicy final : public LinkPolicy {
 public:
  struct Options {
    std::uint64_t batch_bytes = 1 << 20;
    Nanoseconds max_delay = 500'000;
    std::uint32_t depth = 2;
  };
  GlobalPolicy(Rank member, Rank members, Options options);

  void add(const SendRequest& request) override;
  void sent(Rank peer, std::uint64_t bytes) override;
  void control(Rank peer, std::span<const std::byte> message) override;
  void decide(Nanoseconds now, Outcome& outcome) override;
  std::size_t queued() const override { return queued_; }
  /// Without rank 0 there is no coordination: what is left goes when it is ready.
  void left(Rank peer) override;
  std::optional<Nanoseconds> wakes_at() const override;

 private:
  enum class Kind : std::uint16_t {
    queued,
    permit,
    done
  };  // so wide that a Message has no gaps: it goes out as it lies
  struct Message {
    Kind kind;
    std::uint16_t peer;   // destination of the link
    std::uint32_t count;  // permit: messages; done: batches
    std::uint64_t bytes;  // queued: of one message
  };
  /// What rank 0 knows of one link.
  struct Link {
    struct Entry {
      std::uint64_t bytes;
      Nanoseconds since;  // 0: stamped at the next decide
    };
    std::deque<Entry> queue;
    std::uint64_t queued = 0;
    std::uint32_t under_way = 0;  // batches
  };
  void on_message(Rank from, const Message& message);
  void coordinate(Nanoseconds now);
  void tell(Rank peer, const Message& message);
  Link& link(Rank from, Rank to) { return links_[static_cast<std::size_t>(from) * members_ + to]; }

  Rank member_;
  Rank members_;
  Options options_;
  bool uncoordinated_ = false;
  Nanoseconds decided_at_ = 0;
  // As a sender.
  std::vector<std::deque<SendRequest>> queues_;     // per peer
  std::size_t queued_ = 0;                          // in all of them
  std::vector<std::uint32_t> permitted_;            // per peer: messages that may go
  std::vector<std::deque<std::uint32_t>> batches_;  // per peer: messages left of each released batch
  std::vector<std::pair<Rank, Message>> outgoing_;
  // As the coordinator (rank 0).
  std::vector<Link> links_;
  std::vector<std::uint32_t> uplink_batches_;
  std::vector<std::uint32_t> downlink_batches_;
};

}  // namespace casync
