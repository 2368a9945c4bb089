#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "casync/memory.hpp"
#include "casync/transport.hpp"

namespace casync {

/// The number of the rank that has the lane, and how many ranks there are.
struct LaneWorld {
  Rank rank = 0;
  Rank size = 1;
};

/// Moves bodies between the memory of this rank's device and that of its peers' devices: what a Transport does not see.
///
/// The n-th body sent to a peer meets the n-th accepted there. A lane is a true rendezvous: it gives the device nothing
/// to do for a body before its receiver has accepted it, so that a body which nobody awaits holds up nothing. Lanes of
/// two ranks speak to each other by short messages, which arrive in order, beside all else that the ranks say.
///
/// Threads: the one that holds the progress role calls everything here. Nothing waits for a peer or for bodies but
/// `close`. What fails is a peer that is down (TransportSink::on_peer_down), or a failure of this rank's own; nothing
/// throws but `hear`, CorruptPayload for what no lane says.
class DeviceLane {
 public:
  /// How a lane speaks to that of `peer`: it calls this, within the calls below.
  using Tell = std::function<void(Rank peer, std::span<const std::byte> message)>;

  virtual ~DeviceLane() = default;
  /// From now on it may speak, and is spoken to. Once, before all else.
  virtual void open(Tell tell) = 0;
  /// What the lane of `peer` told this one.
  virtual void hear(Rank peer, std::span<const std::byte> message) = 0;
  /// Whether the lane is ready on this rank. Bodies go by it only where all ranks say that it is.
  virtual bool ready() const = 0;
  /// Why the lane will never be ready; empty: it is ready, or may still become so. A session goes on without a lane
  /// that is refused: its devices send through the host.
  virtual const std::string& refusal() const = 0;
  /// Sends `body`, which is memory of the device and stays untouched until on_sent(id).
  virtual void send(Rank peer, MemoryRef body, std::uint64_t id) = 0;
  /// Gives the memory for the next body of `peer`; on_body(id) follows when it is there. No memory (`data` null): that
  /// body is not moved; on_sent and on_body follow all the same.
  virtual void accept(Rank peer, MemoryRef body, std::uint64_t id) = 0;
  /// Gives the device what may go, and reports what is over, by on_sent, on_body and on_peer_down. Returns whether it
  /// reported anything.
  virtual bool poll(TransportSink& sink) = 0;
  /// Whether the device is moving bodies for this rank. A body that is over wakes the thread that makes progress. As
  /// that may fail, the thread looks often while this is true.
  virtual bool moving() const = 0;
  /// Why no body moves any more, on this rank; empty: all is well.
  virtual const std::string& failure() const = 0;
  /// Ends what is under way, within `patience` where peers are well, and frees everything.
  virtual void close(Nanoseconds patience) = 0;
};

}  // namespace casync
