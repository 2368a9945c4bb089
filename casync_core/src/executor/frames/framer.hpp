#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "casync/device_lane.hpp"
#include "casync/memory.hpp"
#include "casync/transport.hpp"
#include "executor/frames/frame.hpp"

namespace casync {

/// Packs control messages, small messages and announcements of large ones into heads, and takes heads apart.
///
/// frame.hpp says what a frame is. Large messages travel as bodies, in the order announced, those of a device by its
/// lane; the receiver accepts them in that order, so a body whose place is not known yet holds back later ones of the
/// same peer and way. Used by the progress thread alone.
class Framer {
 public:
  /// What an incoming frame means; called during `take`, which throws CorruptPayload for a frame that is none.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual void on_control(Rank peer, std::span<const std::byte> message) = 0;
    virtual void on_lane(Rank peer, std::span<const std::byte> message) = 0;
    /// The message of `key` is here (or announced). The receiver answers, now or later, with place() or drop() for
    /// `message_id`.
    virtual void on_message(Rank peer, const MessageKey& key, std::uint64_t message_id) = 0;
    /// The message placed for `id` is complete, with its real length.
    virtual void on_placed(std::uint64_t id, std::size_t bytes) = 0;
    /// What `peer` sent cannot be what it should: a frame, or the message placed for `id`.
    virtual void on_corrupt(Rank peer, std::string_view why, std::optional<std::uint64_t> id) = 0;
    /// A body from `peer` was accepted: its bytes may flow. on_body_done follows when they are here.
    virtual void on_body_begun(Rank /*peer*/) {}
    virtual void on_body_done(Rank /*peer*/, std::size_t /*bytes*/) {}
  };

  /// `checksums`: encoded bodies carry one.
  Framer(Transport& transport, std::uint32_t session_tag, bool checksums);

  /// From now on bodies of a device may come and go by `lane`, which outlives the framer. Once.
  void add_lane(DeviceLane& lane) { lane_ = &lane; }

  // Outgoing.
  /// Of any length.
  void control(Rank peer, std::span<const std::byte> message);
  /// A word of this rank's lane to that of `peer`.
  void lane(Rank peer, std::span<const std::byte> message);
  /// Copies `data` into a head: its memory is free at once. One head must have room for it.
  void send_in_head(Rank peer, const MessageKey& key, std::span<const std::byte> data, bool encoded);
  /// Announces `data` and sends it, by the lane if it is a device's; on_sent(id) is reported. `encoded` bodies of the
  /// host carry a checksum.
  void send_body(Rank peer, const MessageKey& key, MemoryRef data, bool encoded, std::uint64_t id);
  /// Copies `data` into the bulk that is being put together: its memory is free at once. `encoded` as above.
  void add_to_bulk(const MessageKey& key, std::span<const std::byte> data, bool encoded, std::uint64_t id);
  /// Announces what was added and sends it as one body.
  void send_bulk(Rank peer);
  void flush();

  /// What left with the body that the transport reports by `transport_id`: calls `each` with the id of every message.
  template <typename Each>
  void left(std::uint64_t transport_id, const Each& each) {
    const auto at = bulks_.find(transport_id);
    if (at == bulks_.end()) return each(transport_id);
    const Bulk bulk = std::move(at->second);
    bulks_.erase(at);
    for (const std::uint64_t id : bulk.ids) each(id);
  }

  // Incoming.
  void take(Rank peer, std::span<const std::byte> head, Receiver& receiver);
  /// The message of `message_id` goes to `memory`; on_placed(id) follows, perhaps at once. It is corrupt if it is
  /// longer, if it is shorter and `fills` says that it has that length, or if it comes another way than `memory` wants.
  void place(std::uint64_t message_id, MemoryRef memory, bool fills, std::uint64_t id, Receiver& receiver);
  void drop(std::uint64_t message_id, Receiver& receiver);
  /// The transport received the body accepted as `transport_id`.
  void received(std::uint64_t transport_id, Receiver& receiver);

  /// What went over the transport and by the lane.
  TransportCounters counters() const { return transport_.counters() + by_lane_; }

 private:
  enum class State : std::uint8_t { free, fresh, held, announced, placed, dropped };
  struct Message {  // one incoming message between its announcement and its completion
    State state = State::free;
    Rank peer = 0;
    bool by_lane = false;
    bool checked = false;
    std::uint32_t crc = 0;
    std::size_t bytes = 0;
    std::vector<std::byte> copy;  // held: a small message that came too early; of a bulk: the body
    std::vector<BulkPart> parts;  // of a bulk
    MemoryRef memory;
    std::uint64_t id = 0;
  };
  struct Bulk {                    // a body of ours
    std::vector<std::byte> parts;  // BulkParts
    std::vector<std::byte> body;
    std::vector<std::uint64_t> ids;
  };
  /// No rank says more at once: what is longer is not kept.
  static constexpr std::size_t kLongestControl = std::size_t{64} << 20;
  static constexpr std::uint64_t kBulk = std::uint64_t{1} << 63U;  // ids of bulks have it, those of messages do not
  void take_control(Rank peer, bool is_last, std::span<const std::byte> bytes, Receiver& receiver);
  void announce(Rank peer, const FrameEntry& entry, std::span<const std::byte> bytes, Receiver& receiver);
  bool make_room(Message& message, Receiver& receiver);
  void take_apart(Rank peer, std::span<const BulkPart> parts, std::span<const std::byte> body, Receiver& receiver);
  void deliver(Rank peer, const MessageKey& key, std::span<const std::byte> bytes, Receiver& receiver);
  void append(Rank peer, const FrameEntry& entry, std::span<const std::byte> bytes);
  std::uint64_t new_message(Rank peer, std::size_t bytes);
  void free_message(std::uint64_t message_id);
  using Queues = std::vector<std::deque<std::uint64_t>>;  // per peer: message ids, in order
  Queues& queues_of(const Message& message) { return message.by_lane ? announced_by_lane_ : announced_; }
  void accept_in_order(const Message& last, Receiver& receiver);

  Transport& transport_;
  DeviceLane* lane_ = nullptr;
  TransportCounters by_lane_;  // bodies
  std::uint32_t session_tag_;
  bool checksums_;
  std::vector<FrameWriter> outgoing_;  // per peer
  std::vector<Rank> dirty_;            // peers with something to flush
  Bulk bulk_;                          // being put together
  std::uint64_t bulk_count_ = 0;
  std::map<std::uint64_t, Bulk> bulks_;  // by id, until they have left
  std::vector<Message> messages_;        // by message id
  std::vector<std::uint64_t> free_;
  Queues announced_;
  Queues announced_by_lane_;
  std::vector<std::vector<std::byte>> control_;  // per peer: what has come of a message in parts
  std::span<const std::byte> fresh_;             // bytes of the message being delivered
};

}  // namespace casync
