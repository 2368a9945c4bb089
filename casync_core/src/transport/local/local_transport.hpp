#pragma once

#include <cstddef>
#include <memory>

#include "casync/transport.hpp"

/// Ranks as threads of one process: the transport of tests and of worlds of one.
namespace casync::transport {

namespace local {
struct State;
}

/// A world whose ranks exchange heads through mailboxes and bodies by one copy, made by the receiver's poll. Every rank
/// can wake every other. Faults are scripted: any thread may call kill, stop and resume at any time.
///   LocalWorld world(2);
///   std::thread peer([&] { auto t = world.connect(1); ... });
///   auto t = world.connect(0);
/// The world may be destroyed before its transports.
class LocalWorld {
 public:
  explicit LocalWorld(Rank size, std::size_t head_bytes = 32 * 1024);

  /// The transport of `rank`; once per rank. Nobody waits: peers may send before this rank has connected.
  std::unique_ptr<Transport> connect(Rank rank);

  /// `rank` is dead: it hears and says nothing more; its peers get what it had sent as heads, then on_peer_down. When
  /// this returns nobody reads or writes the memory of its bodies.
  void kill(Rank rank);
  /// Freezes delivery to and from `rank`: its poll reports nothing, and nobody hears of it. Nothing is lost.
  void stop(Rank rank);
  void resume(Rank rank);

 private:
  std::shared_ptr<local::State> state_;
};

/// A world of one: nothing to send to, but a place to sleep and be woken.
std::unique_ptr<Transport> connect_solo();

}  // namespace casync::transport
