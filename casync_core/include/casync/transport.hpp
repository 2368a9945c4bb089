#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "casync/types.hpp"

/// The transport contract: moves heads and bodies between ranks, and knows nothing of gradients.
///
/// A *head* is a short message (at most `head_bytes()`), for which the transport has memory at the receiver. A
/// *body* is any number of bytes for which the receiver has called `accept` with the exact length. Per pair of ranks
/// heads arrive in the order sent, and the n-th body sent meets the n-th accepted. A body costs the receiver no memory
/// of the transport's own.
///
/// Threads: one thread at a time calls everything here (the one that holds the progress role), except `wake`, which any
/// thread may call, and `wait`, in which one thread may be while another calls the rest. Nothing blocks except `wait`,
/// `flush` and `close`.
namespace casync {

/// Receives what happened, during Transport::poll only.
class TransportSink {
 public:
  virtual ~TransportSink() = default;
  virtual void on_head(Rank peer, std::span<const std::byte> head) = 0;  ///< valid until the call returns
  virtual void on_sent(std::uint64_t id) = 0;                            ///< a body's memory may be reused
  virtual void on_body(std::uint64_t id) = 0;                            ///< an accepted body is complete
  /// Once per peer. `why` says how it was noticed. Nothing more is sent to that peer. Where it has closed, the bodies
  /// that it had sent before can still be accepted; where it has failed, outstanding requests are gone.
  virtual void on_peer_down(Rank peer, std::string_view why) = 0;
};

/// Bytes handed to and taken from the network, per session. Heads and bodies, without the network's own headers.
struct TransportCounters {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_messages = 0;
  std::uint64_t received_messages = 0;

  friend TransportCounters operator+(const TransportCounters& a, const TransportCounters& b) {
    return {a.sent_bytes + b.sent_bytes, a.received_bytes + b.received_bytes, a.sent_messages + b.sent_messages,
            a.received_messages + b.received_messages};
  }
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;
  virtual std::size_t head_bytes() const = 0;  ///< largest head

  /// Sends `head`, which it takes: what it leaves in its place is memory for the next one, at best. Self-sends are not
  /// allowed here nor below.
  virtual void send_head(Rank peer, std::vector<std::byte>&& head) = 0;
  /// Sends `body`, which stays untouched and alive until on_sent(id). Zero bytes are allowed.
  virtual void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) = 0;
  /// Gives the memory for the next body of `peer`; on_body(id) follows when it is there.
  virtual void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) = 0;

  /// Makes progress and reports. Returns whether anything was reported.
  virtual bool poll(TransportSink& sink) = 0;
  /// True while bodies or heads of this rank are on their way, and `wait` would not return when they get on: then the
  /// caller has to poll. Requests that wait for a peer's program do not count.
  virtual bool moving() const = 0;

  /// Sleeps until something may have arrived or has to be reported, `wake` is called, or `timeout` passed; may return
  /// early. A `wake` that came between the last return of `wait` and this call is not lost. Ranks of one host wake each
  /// other.
  virtual void wait(Nanoseconds timeout) = 0;
  virtual void wake() = 0;
  /// True if every peer can wake this rank, so that waiting needs no polling.
  virtual bool wakes() const = 0;
  /// True if the kernel ends `wait` at whatever a peer sends, bodies too: who wakes earlier, to look, finds nothing.
  virtual bool hears() const { return false; }

  virtual const TransportCounters& counters() const = 0;
  /// Bytes of bodies that have moved between this rank and `peer`, those of bodies under way included; nothing: it
  /// cannot be told before a body is through.
  virtual std::optional<std::uint64_t> flowed(Rank /*peer*/) const { return std::nullopt; }

  /// Sends what is queued, for at most `timeout`; then, by close, drops outstanding requests and frees everything.
  /// After close only the destructor may be called. Peers that are gone do not block it; for the others to close too it
  /// waits for at most `patience`.
  virtual void flush(Nanoseconds timeout) = 0;
  virtual void close(Nanoseconds patience) = 0;
  /// In a child process after a fork: gives up the child's part of the connections, so that peers notice when the
  /// parent has gone. Nothing else may be called there, before or after, the destructor included.
  virtual void close_in_child() {}
};

}  // namespace casync
