#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/host/heads.hpp"
#include "transport/host/neighbours.hpp"
#include "transport/mailbox.hpp"

/// Heads to and from the ranks of this host, through mailboxes instead of the network.
namespace casync::transport::host {

/// One thread. Peers without mailboxes are none of its: reaches() says which it has.
class HostMail {
 public:
  struct Head {
    HeadKind kind;
    std::span<const std::byte> bytes;
  };

  HostMail(Rank self, const Neighbours& neighbours);

  bool reaches(Rank peer) const { return boxes_[peer] != nullptr; }
  const std::vector<Rank>& peers() const { return peers_; }

  /// Posts a head, or keeps it until there is room.
  void post(Rank peer, HeadKind kind, std::vector<std::byte>&& head);
  /// Posts what was kept, as far as there is room now; `posted` hears to whom. Returns whether anything was.
  bool post_kept(const std::function<void(Rank peer)>& posted);
  /// Heads that wait for room: of all peers, of one.
  std::size_t kept() const { return kept_; }
  bool keeps(Rank peer) const { return reaches(peer) && !box(peer).kept.empty(); }
  /// Forgets what waits for `peer`, which is gone.
  void forget(Rank peer);

  /// The oldest head from `peer`, until `pop`. Throws CorruptPayload, once: after that there is none.
  std::optional<Head> front(Rank peer);
  /// True if the peer waits for the room: it must be rung.
  bool pop(Rank peer) { return box(peer).in.pop(); }

 private:
  struct GradientState {
    HeadKind kind;
    std::vector<std::byte> bytes;
  };
  struct Boxes {
    MailboxWriter out;
    MailboxReader in;
    std::deque<GradientState> kept = {};
    bool corrupt = false;  ///< nothing in `in` can be trusted any more
  };
  Boxes& box(Rank peer) { return *boxes_[peer]; }
  const Boxes& box(Rank peer) const { return *boxes_[peer]; }

  std::vector<Rank> peers_;
  std::vector<std::unique_ptr<Boxes>> boxes_;  // per peer of the session; null: it has none
  std::size_t kept_ = 0;
};

}  // namespace casync::transport::host
