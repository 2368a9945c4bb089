#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/event.hpp"

namespace casync {

/// A raw or encoded message follows its entry. A body travels alone, and its entry announces it; of an encoded body the
/// checksum follows the entry. A body of a device goes by the lane, and the words of two lanes to each other follow
/// theirs. A bulk is the bodies of several messages, one after the other as one body: a BulkPart for each follows the
/// entry. A control message that is longer than an entry comes in parts, of which the last one is a `control`.
enum class EntryKind : std::uint32_t {
  control = 0,
  raw = 1,
  encoded = 2,
  body = 3,
  encoded_body = 4,
  device_body = 5,
  lane = 6,
  bulk = 7,
  control_part = 8,
};

/// What a frame says of one message. The writer fills in `bytes` and `crc`.
struct FrameEntry {
  EntryKind kind = EntryKind::control;
  std::uint32_t bytes = 0;  ///< of what follows
  MessageKey key{};
  std::uint32_t crc = 0;   ///< of the entry, with 0 here, and of what follows unless it is raw
  std::uint64_t size = 0;  ///< of the message
};

/// What is said of one message of a bulk.
struct BulkPart {
  MessageKey key{};
  std::uint32_t bytes = 0;
  std::uint32_t checked = 0;  ///< 1: `crc` is that of the message
  std::uint32_t crc = 0;
};
static_assert(sizeof(BulkPart) == kBulkPartBytes);

/// A frame is one head of the transport: a header, then entries. This is the only place that knows its layout.
struct FrameHeader {
  std::uint32_t magic;
  std::uint32_t session;
  std::uint32_t bytes;  // of all entries
};

/// Writes frames, one after the other.
class FrameWriter {
 public:
  FrameWriter(std::uint32_t session_tag, std::size_t head_bytes) : session_tag_(session_tag), head_bytes_(head_bytes) {}

  /// The most bytes that one entry of a head of `head_bytes` can carry.
  static constexpr std::size_t room(std::size_t head_bytes) {
    constexpr std::size_t kLayout = sizeof(FrameHeader) + sizeof(FrameEntry);
    return head_bytes > kLayout ? head_bytes - kLayout : 0;
  }

  bool empty() const { return frame_.empty(); }
  /// Whether this frame has room for one more entry that carries `bytes`.
  bool has_room(std::size_t bytes) const;
  void append(FrameEntry entry, std::span<const std::byte> bytes);
  /// Completes the frame, which the caller takes. What is left in its place is memory for the next frame.
  std::vector<std::byte>& complete();
  void clear() { frame_.clear(); }

 private:
  std::uint32_t session_tag_;
  std::size_t head_bytes_;
  std::vector<std::byte> frame_;
};

/// Takes a frame apart. Throws CorruptPayload for one that is not of this session, is cut short, or has a wrong
/// checksum.
///   for (FrameReader frame(tag, head); frame.next();) use(frame.entry(), frame.bytes());
class FrameReader {
 public:
  FrameReader(std::uint32_t session_tag, std::span<const std::byte> head);

  /// Goes on to the next entry; false after the last one.
  bool next();
  const FrameEntry& entry() const { return entry_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> left_;
  FrameEntry entry_;
  std::span<const std::byte> bytes_;
};

}  // namespace casync
