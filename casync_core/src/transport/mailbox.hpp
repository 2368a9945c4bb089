#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// Short messages from one process to another of the same host: a ring of bytes in memory that both map.
namespace casync::transport {

/// The head of the memory; the ring follows. Plain memory: valid when zeroed.
struct MailboxCell {
  alignas(64) std::atomic<std::uint64_t> written{0};  ///< bytes so far, by the sender
  alignas(64) std::atomic<std::uint64_t> read{0};     ///< bytes so far, by the receiver
  std::atomic<std::uint32_t> starved{0};              ///< 1 while the sender waits for room
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// Before every message, which lies in one piece behind it and is padded to whole lines.
struct alignas(64) MailHeader {
  std::uint64_t bytes;
  std::uint64_t kind;
  std::uint64_t unused[6] = {};
};

constexpr std::size_t whole_lines(std::size_t bytes) {
  return (bytes + sizeof(MailHeader) - 1) / sizeof(MailHeader) * sizeof(MailHeader);
}

/// The least memory of a mailbox for messages of up to `largest` bytes: two of them fit, because one may have to leave
/// the end of the ring empty.
constexpr std::size_t mailbox_bytes(std::size_t largest) {
  return sizeof(MailboxCell) + 2 * (sizeof(MailHeader) + whole_lines(largest));
}

/// The sender's end; one thread at a time.
class MailboxWriter {
 public:
  /// `memory`: zeroed, a multiple of 64 bytes, aligned to 64.
  explicit MailboxWriter(std::span<std::byte> memory);

  /// False if there is no room: the receiver then says so when it has read more (MailboxReader::pop).
  bool put(std::uint64_t kind, std::span<const std::byte> message);

 private:
  bool has_room(std::uint64_t end);

  MailboxCell* cell_;
  std::span<std::byte> ring_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;  // as last seen
};

/// The receiver's end; one thread at a time.
class MailboxReader {
 public:
  struct Message {
    std::uint64_t kind;
    std::span<const std::byte> bytes;
  };

  explicit MailboxReader(std::span<std::byte> memory);

  /// The oldest message, which stays in the box until `pop`. A header that no writer writes throws CorruptPayload.
  std::optional<Message> front();
  /// Gives its room back. True if the sender waits for room and nobody has said so yet.
  bool pop();

 private:
  MailboxCell* cell_;
  std::span<std::byte> ring_;
  std::uint64_t read_ = 0;
  std::uint64_t written_ = 0;  // as last seen
  std::uint64_t next_ = 0;     // where the message after the oldest begins
};

}  // namespace casync::transport
