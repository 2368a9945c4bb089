#pragma once

/// How a session stands with a peer, whatever carries its messages.
namespace casync::transport {

struct Standing {
  bool down = false;          ///< nothing is sent to it any more
  bool reported = false;      ///< on_peer_down has been called
  bool failed = false;        ///< nothing can be had from it; otherwise what it sent before it closed is still accepted
  bool left = false;          ///< its goodbye has come
  bool goodbye_sent = false;  ///< ours is on its way
};

}  // namespace casync::transport
