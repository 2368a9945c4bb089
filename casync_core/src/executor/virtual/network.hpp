#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "casync/transport.hpp"
#include "executor/virtual/agenda.hpp"
#include "executor/virtual/fair_shares.hpp"

namespace casync {

struct LinkSpeed {
  double bytes_per_second = 1.25e8;
  Nanoseconds latency = 50'000;
};

struct NetworkOptions {
  std::vector<std::uint32_t> host_of;  ///< per rank; ranks of one host share its link to the others
  LinkSpeed between{};                 ///< hosts
  LinkSpeed within{1e10, 2'000};       ///< a host
  std::vector<double> host_speed{};    ///< per host: factor of its link's speed; empty: 1 for all
  Nanoseconds jitter = 0;              ///< a message takes up to this much longer
  std::size_t head_bytes = 32 << 10;
  bool copies = true;  ///< false: bodies have lengths but no contents
};

/// A network in virtual time, and a Transport per rank on it (contract: casync/transport.hpp).
///
/// A body starts when sender and receiver have met, and after those of its pair before it. Links are shared evenly by
/// what moves (FairShares). Heads of more than a packet move as bodies do, on a stream of their own; others pass. A
/// body's bytes are copied when the last one leaves the sender, so memory that is reused too early shows.
///
/// Faults are scripted. What has left a dead rank still arrives. A cut pair of ranks holds everything until it is
/// mended.
class VirtualNetwork final : private Agenda::Actor {
 public:
  /// `news(rank, rings)`: something waits for the rank's next poll, or the rank was woken. What comes from its own host
  /// rings; of the rest the rank hears when it looks.
  VirtualNetwork(Agenda& agenda, NetworkOptions options, std::function<void(Rank, bool)> news);
  ~VirtualNetwork();

  Transport& transport(Rank rank);

  /// `rank` is dead. Each peer hears of it (on_peer_down) with probability `noticed`, after at most `within`.
  void kill(Rank rank, double noticed, Nanoseconds within);
  /// `rank` closed its transport in good order; every peer hears of it.
  void close(Rank rank);
  void cut(Rank a, Rank b);
  void mend(Rank a, Rank b);

 private:
  class Port;
  enum Kind : std::uint8_t { kHeads, kBodies, kKinds };
  enum What : std::uint32_t { kHead, kThrough, kLeft, kLanded, kDown };
  struct Sent {
    std::span<const std::byte> bytes;
    std::uint64_t id;
  };
  struct Accepted {
    std::span<std::byte> memory;
    std::uint64_t id;
  };
  struct Queued {
    std::uint64_t message;
    std::size_t bytes;
  };
  struct Pair {
    std::deque<Sent> sent;
    std::deque<Accepted> accepted;
    Nanoseconds last_head = -1;                                    // when the last head sent arrives
    Nanoseconds last_body = -1;                                    // when the last body that has started arrives
    std::array<std::deque<Queued>, kKinds> queues{};               // of each, the first message moves
    std::optional<std::pair<std::uint64_t, Nanoseconds>> heard{};  // that the sender is gone: message, soonest time
    std::size_t passed = 0;                                        // bytes of heads that passed what moved
    bool cut = false;
    bool down = false;                                            // the receiver was told that the sender is gone
    std::vector<std::pair<std::uint32_t, std::uint64_t>> held{};  // (what, value) while cut
  };
  struct Message {  // a head, or a body on its way
    Rank from = 0;
    Rank to = 0;
    std::vector<std::byte> head;
    Sent sent{};
    Accepted accepted{};
    bool left = false;  // a body: its last byte has left the sender
  };
  struct Fabric {  // links that share no body with those of another one
    FairShares moving;
    Nanoseconds looks = -1;  // when it is looked at next
  };
  void happen(std::uint32_t what, std::uint64_t value) override;
  void send_head(Rank from, Rank to, std::vector<std::byte>&& head);
  void send_body(Rank from, Rank to, std::span<const std::byte> body, std::uint64_t id);
  void accept(Rank from, Rank to, std::span<std::byte> body, std::uint64_t id);
  void match(Rank from, Rank to);
  void queue(Rank from, Rank to, Kind kind, const Queued& one);
  void start(Rank from, Rank to, Kind kind);
  void arrive(Rank from, Rank to, std::uint64_t message, Nanoseconds span);
  void look(Fabric& fabric);
  void through(Fabric& fabric);
  void gone(Rank rank, double noticed, Nanoseconds within, const std::string& why);
  void tell_gone(Pair& way);
  bool near(Rank from, Rank to) const;
  bool on_one_host() const;
  const LinkSpeed& speed(Rank from, Rank to) const { return near(from, to) ? options_.within : options_.between; }
  Fabric& fabric_of(Rank from, Rank to) { return fabrics_[near(from, to) ? 1 + options_.host_of[from] : 0]; }
  /// Where the rank's link, or that of its host, is among those of what carries to this peer.
  std::size_t end_of(Rank rank, Rank peer) const { return near(rank, peer) ? place_[rank] : options_.host_of[rank]; }
  Pair& pair(Rank from, Rank to) { return pairs_[std::size_t{from} * size_ + to]; }
  std::uint64_t new_message(Rank from, Rank to);

  Agenda& agenda_;
  NetworkOptions options_;
  std::function<void(Rank, bool)> news_;
  Rank size_;
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<bool> gone_;
  std::vector<std::string> why_;
  std::vector<Pair> pairs_;
  std::vector<Fabric> fabrics_;     // between hosts, then that of each host
  std::vector<std::size_t> place_;  // of a rank on its host
  std::vector<Message> messages_;
  std::vector<std::uint64_t> free_;
};

}  // namespace casync
