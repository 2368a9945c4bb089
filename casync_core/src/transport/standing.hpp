#pragma once

/// How a session stands with a peer, whatever carries its messages.
namespace casync::transport {

struct Standing {
  bool down = false;          ///< nothing is sent to it or accepted from it any more
  bool reported = false;      ///< on_peer_down has been called
  bool failed = false;        ///< not reachable at all; otherwise it closed, or we do
  bool left = false;          ///< its goodbye has come
  bool goodbye_sent = false;  ///< ours is on its way
};

}  // namespace casync::transport
