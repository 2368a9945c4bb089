#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "transport/tcp/chunk.hpp"

/// Bodies of one peer, as they come in chunks on its streams. Pure.
namespace casync::transport::tcp {

struct Arrived {
  std::uint64_t id;
  std::size_t bytes;
};

/// The accepted bodies of a peer, which its streams fill.
class BodiesIn {
 public:
  void accept(std::span<std::byte> memory, std::uint64_t id);
  /// Where the chunk goes; nothing if its body has not been accepted yet. Throws CorruptPayload if it does not fit.
  std::optional<std::span<std::byte>> place(const Chunk& chunk) const;
  /// All of the chunk is there. Its body, if nothing of that is missing.
  std::optional<Arrived> arrived(const Chunk& chunk);
  void clear();

 private:
  struct Body {
    std::span<std::byte> memory;
    std::uint64_t id;
    std::size_t there = 0;  // bytes
    bool done = false;
  };

  std::deque<Body> bodies_;
  std::uint64_t first_ = 0;  // the number of bodies_.front()
};

/// One stream: where its next bytes go.
class StreamIn {
 public:
  /// The rest of the chunk that is coming: bytes go there first, and what follows them to `received`.
  std::span<std::byte> rest() const { return rest_; }
  /// `bytes` have come, the first of them into `rest()`, those behind it into `more`. Appends the bodies that are
  /// whole.
  void received(std::size_t bytes, std::span<const std::byte> more, BodiesIn& bodies, std::vector<Arrived>& whole);
  /// Whether the next chunk is of a body that was not accepted: nothing is to be read until `resume` has succeeded.
  bool is_held() const { return is_held_; }
  /// Goes on if the body has been accepted meanwhile. Returns whether it does.
  bool resume(BodiesIn& bodies, std::vector<Arrived>& whole);

 private:
  void parse(std::span<const std::byte> bytes, BodiesIn& bodies, std::vector<Arrived>& whole);
  bool begin(BodiesIn& bodies, std::vector<Arrived>& whole);
  void advance(std::size_t bytes, BodiesIn& bodies, std::vector<Arrived>& whole);

  std::array<std::byte, sizeof(Chunk)> header_;
  std::size_t header_bytes_ = 0;  // that have come
  Chunk chunk_{};
  std::span<std::byte> rest_;
  bool is_held_ = false;
  std::vector<std::byte> held_;  // what came behind the header of the held chunk
};

}  // namespace casync::transport::tcp
