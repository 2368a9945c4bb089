#pragma once

#include <memory>
#include <span>
#include <vector>

#include "casync/transport.hpp"

/// Ranks as processes that are connected by stream sockets: TCP between hosts, sockets of the host inside it.
namespace casync::transport {

/// The connected sockets to one peer, each of which is connected to the same place of that peer's.
struct PeerSockets {
  int heads = -1;           ///< -1: of this rank itself
  std::vector<int> bodies;  ///< one or more
};

/// Takes the sockets, also if it throws. Collective over the session: blocks until all ranks have come, for at most
/// `timeout`. Throws PeerFailure, which names the rank, if one dies or does not come.
///
/// `hosts`: per rank a number, equal for ranks of one host. Without `share_memory` ranks of this host are spoken with
/// through sockets alone.
///
/// What it guarantees beyond the contract:
///  - Heads have a connection of their own, or the mailbox between ranks of one host. A body that nobody has accepted
///    stops the stream that it came on, and nothing else of that peer.
///  - A body is sent from the memory that it lies in, and received into the memory that was accepted. Its parts go over
///    all streams; whichever has room takes the next part.
///  - `wait` sleeps in the kernel until a socket has something, so `wakes` and `hears` are always true, and `moving` is
///    always false.
///  - A connection that ends or is reset without a goodbye is the end of the peer: on_peer_down, once. A peer that is
///    silent is not noticed here.
std::unique_ptr<Transport> connect_tcp(Rank self, std::vector<PeerSockets> peers, std::span<const int> hosts,
                                       int session_tag, bool share_memory, Nanoseconds timeout);

}  // namespace casync::transport
