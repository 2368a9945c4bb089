#pragma once

#include <memory>
#include <vector>

#include "casync/transport.hpp"

/// Ranks as the processes of one mpirun, over MPI point-to-point on a communicator of the session's own.
namespace casync::transport {

/// Connects the processes `peers` (ranks of the MPI world, in the order of the session's ranks; empty: all of them).
/// Collective over them: each calls with the same list and the same `session_tag`; sessions with different tags may be
/// connected in different orders by different threads. Blocks until all have come. Throws PeerFailure if one dies
/// meanwhile.
///
/// Without `share_memory` it speaks with ranks of this host as with those of others, through MPI alone.
///
/// What it guarantees beyond the contract:
///  - Heads between hosts go on a lane with receives posted beforehand, a few per peer, and between ranks of one host
///    through mailboxes in shared memory; bodies on another lane, in requests of at most 1 GiB.
///  - A peer that MPI reports as failed, that breaks the protocol, or that closes its session, is on_peer_down once.
///    Sends to it and accepts from it are ignored from then on. Nothing throws for a dead peer.
///  - Ranks of one host ring each other through shared memory; `wakes` is true if all peers are on this host.
///
/// `close` waits until every living peer has closed as well, at most five seconds: only then may MPI use the
/// communicator's number again. A peer that does not come, or a fault, costs the process one communicator and its
/// buffers until it ends. Should a body from a peer that is neither dead nor polling still be flowing in at that time,
/// its memory must outlive the process' use of MPI; bodies that have not begun to flow, and those of dead peers, are
/// let go.
std::unique_ptr<Transport> connect_mpi(int session_tag, std::vector<int> peers = {}, bool share_memory = true);

}  // namespace casync::transport
