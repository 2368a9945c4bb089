#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/host/heads.hpp"

/// Heads as bytes on a connection of their own, so that no body holds them back. Pure.
namespace casync::transport::tcp {

enum class FrameKind : std::uint32_t {
  head = 0,
  goodbye = 1,  ///< the sender closes; nothing follows
  bell = 2,     ///< the receiver is to wake up: there is something in its mailbox
};

/// It stands before a head. Numbers on the wire are those of the machine: ranks of a session have the same byte order.
struct FrameHeader {
  std::uint32_t bytes;
  FrameKind kind;
};

/// Heads that the connection has not taken yet.
class HeadsOut {
 public:
  void add(FrameKind kind, std::span<const std::byte> head = {});
  /// What it takes next.
  std::span<const std::byte> waiting() const { return std::span(bytes_).subspan(sent_); }
  void sent(std::size_t bytes);
  void clear();

 private:
  std::vector<std::byte> bytes_;
  std::size_t sent_ = 0;
};

/// What has come, cut into heads.
class HeadsIn {
 public:
  struct Frame {
    FrameKind kind;
    std::span<const std::byte> bytes;  ///< until the next `room`
  };

  HeadsIn() : memory_(std::make_unique_for_overwrite<std::byte[]>(kBytes)) {}

  /// Where the next bytes go, never empty. Only after `next` has returned nothing.
  std::span<std::byte> room();
  void received(std::size_t bytes) { end_ += bytes; }
  /// The oldest head that is whole, once. Throws CorruptPayload for what no sender writes.
  std::optional<Frame> next();

 private:
  static constexpr std::size_t kFrame = sizeof(FrameHeader) + host::kHeadBytes;
  static constexpr std::size_t kBytes = 2 * kFrame;

  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace casync::transport::tcp
