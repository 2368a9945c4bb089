#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "casync/types.hpp"

namespace casync::nccl {

/// In which order a rank gives its device what it exchanges with its peers, so that no devices wait for each other in a
/// circle. Pure: it is told what happened, and says what to tell a peer and what to launch.
///
/// A device works off groups one after the other, and an exchange is over when both ends have come to it. So ranks that
/// launch in different orders may wait for ever: a group of A for one of B, which stands behind one that waits for A.
/// Here every exchange gets a time, and every rank launches in the order of times:
///
///     offer   sender to receiver: a body of so many bytes is there
///     take    receiver to sender, when it is accepted: it launches nothing of a later time before it knows this one's,
///             which is not before the time that it says
///     go      sender to receiver: the time, which is later than all that the sender has launched or settled
///     leave   receiver to sender, instead of take: the body is not wanted, or empty
///
/// This is Skeen's agreement on a total order (Birman and Joseph, 1987, https://doi.org/10.1145/7351.7478), between
/// two. Who offered waits for nobody but the receiver's program, and who said take only for the sender's next turn.
/// Neither waits for a device.
///
/// Why no circle is left: of the exchanges that are not over, look at the earliest. All that its two ends have launched
/// before is over, so both devices have come to it, and it moves. Groups do not change that. Their parts are in the
/// same order and begin together, so one only begins earlier than by itself. That needs parts that go on independently
/// of each other: NCCL has that for few enough of them, each in a direction of its own. It connects a pair when the
/// pair first meets, and all of a group waits for that. So a first meeting has a group for itself, on both sides.
class LaunchOrder {
 public:
  enum class Word : std::uint8_t { offer, take, go, leave };
  /// What to tell the order of a peer.
  struct Message {
    Rank peer;
    Word word;
    std::uint64_t value;  ///< of an offer the bytes, of take and go a time
  };
  struct Body {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
  };
  struct Exchange {
    Rank peer;
    bool is_send;
    Body body;
  };

  static constexpr std::size_t kMostOfGroup = 8;

  LaunchOrder(Rank rank, Rank size) : rank_(rank), peers_(size) {}

  void send(Rank peer, const Body& body);
  /// No memory: it is not wanted.
  void accept(Rank peer, const Body& body);
  /// Throws CorruptPayload for what the peer cannot have meant.
  void hear(Rank peer, Word word, std::uint64_t value);

  /// What has to be told since the last call, in order.
  std::vector<Message> messages() { return std::exchange(messages_, {}); }
  /// What is over without having been moved, since the last call.
  std::vector<Exchange> unmoved() { return std::exchange(unmoved_, {}); }
  bool has_unmoved() const { return !unmoved_.empty(); }
  /// What the device is to be given next, as one group; empty: nothing yet.
  std::vector<Exchange> next_group();

 private:
  struct Peer {
    std::deque<Body> sent;              // offered, and neither taken nor left
    std::deque<std::uint64_t> offered;  // bytes of what it sends, which was not accepted
    std::deque<Body> accepted;          // of which it has offered nothing yet
    std::uint64_t exchanges = 0;        // with it, in either direction
    std::set<bool> met;                 // in this direction something was launched
  };
  /// Time, sender, and a number that tells apart what the same sender has not decided.
  using Key = std::tuple<std::uint64_t, Rank, std::uint64_t>;
  struct Entry {
    Exchange exchange;
    bool is_settled;  // else its time is a bound
  };

  void meet(Rank peer);
  void settle(Rank peer, std::uint64_t time);
  void tell(Rank peer, Word word, std::uint64_t value = 0) { messages_.push_back({peer, word, value}); }

  Rank rank_;
  std::uint64_t clock_ = 0;  // the latest time that was said or heard
  std::vector<Peer> peers_;
  std::map<Key, Entry> queue_;
  std::vector<Message> messages_;
  std::vector<Exchange> unmoved_;
};

}  // namespace casync::nccl
