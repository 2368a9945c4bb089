#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/chunk.hpp"

/// Bodies for one peer, cut into chunks for its streams. Pure.
namespace casync::transport::tcp {

/// A chunk that a stream is to send: its header, then `memory`.
struct Piece {
  Chunk chunk;
  std::span<const std::byte> memory;
};

/// The bodies of all streams to a peer. Whichever stream has room takes the next chunk, so a stream that loses packets
/// holds back what it has taken and no more.
class BodiesOut {
 public:
  /// `chunk_bytes`: the most of a body that one stream takes at once.
  explicit BodiesOut(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void add(std::span<const std::byte> memory, std::uint64_t id);
  /// The next chunk, for the stream that asks.
  std::optional<Piece> next();
  /// A stream has sent all of it. The id of its body, if nothing of that is left.
  std::optional<std::uint64_t> sent(const Chunk& chunk);
  /// Whether every byte of every body was sent.
  bool empty() const { return bodies_.empty(); }
  /// Whether there is a chunk that no stream has taken.
  bool waits() const { return next_ < first_ + bodies_.size(); }
  void clear();

 private:
  struct Body {
    std::span<const std::byte> memory;
    std::uint64_t id;
    std::size_t taken = 0;  // bytes, by streams
    std::size_t sent = 0;
    bool done = false;
  };

  std::size_t chunk_bytes_;
  std::deque<Body> bodies_;
  std::uint64_t first_ = 0;  // the number of bodies_.front()
  std::uint64_t next_ = 0;   // of the body from which the next chunk is
};

/// The chunks that one stream has taken.
class StreamOut {
 public:
  static constexpr std::size_t kPieces = 32;         ///< that one call to the kernel sends
  static constexpr std::size_t kBytes = 256 * 1024;  ///< in all of them, if more than one

  bool empty() const { return pieces_.empty(); }
  /// Takes of `bodies` what one call can send.
  void take(BodiesOut& bodies);
  /// What is to be sent, in `parts`, which is kept until `sent`.
  std::span<iovec> gather();
  /// Appends the chunks of which nothing is left.
  void sent(std::size_t bytes, std::vector<Chunk>& whole);
  void clear();

 private:
  std::deque<Piece> pieces_;
  std::size_t sent_ = 0;  // of the first piece, its header included
  std::array<iovec, 2 * kPieces> parts_{};
};

}  // namespace casync::transport::tcp
