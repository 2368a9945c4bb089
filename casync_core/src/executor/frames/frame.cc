#include "executor/frames/frame.hpp"

#include <cstring>
#include <type_traits>

#include "casync/error.hpp"
#include "common/crc32c.hpp"
#include "common/wire.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kMagic = 0x43615331;  // "CaS1"

std::uint32_t sum_of(const FrameEntry& entry, std::span<const std::byte> bytes) {
  static_assert(std::has_unique_object_representations_v<FrameEntry>);
  FrameEntry plain = entry;
  plain.crc = 0;
  const std::uint32_t sum = crc32c(std::as_bytes(std::span(&plain, 1)));
  return entry.kind == EntryKind::raw ? sum : crc32c(bytes, sum);
}

[[noreturn]] void throw_foreign() {
  throw CorruptPayload("a frame is not one of this session, or its checksum is wrong");
}

}  // namespace

bool FrameWriter::has_room(std::size_t bytes) const {
  const std::size_t used = frame_.empty() ? sizeof(FrameHeader) : frame_.size();
  return used + sizeof(FrameEntry) + bytes <= head_bytes_;
}

void FrameWriter::append(FrameEntry entry, std::span<const std::byte> bytes) {
  CASYNC_CHECK(has_room(bytes.size()), "a message of ", bytes.size(), " bytes does not fit into a frame");
  if (frame_.empty()) frame_.resize(sizeof(FrameHeader));
  entry.bytes = static_cast<std::uint32_t>(bytes.size());
  entry.crc = sum_of(entry, bytes);
  const auto* begin = reinterpret_cast<const std::byte*>(&entry);
  frame_.insert(frame_.end(), begin, begin + sizeof entry);
  frame_.insert(frame_.end(), bytes.begin(), bytes.end());
}

std::vector<std::byte>& FrameWriter::complete() {
  const FrameHeader header{kMagic, session_tag_, static_cast<std::uint32_t>(frame_.size() - sizeof(FrameHeader))};
  std::memcpy(frame_.data(), &header, sizeof header);
  return frame_;
}

FrameReader::FrameReader(std::uint32_t session_tag, std::span<const std::byte> head) {
  ByteReader reader(head);
  const auto header = reader.get<FrameHeader>();
  left_ = reader.take(reader.left());
  if (header.magic != kMagic || header.session != session_tag || header.bytes != left_.size()) throw_foreign();
}

bool FrameReader::next() {
  if (left_.empty()) return false;
  ByteReader reader(left_);
  entry_ = reader.get<FrameEntry>();
  bytes_ = reader.take(entry_.bytes);
  left_ = reader.take(reader.left());
  if (entry_.crc != sum_of(entry_, bytes_)) throw_foreign();
  return true;
}

}  // namespace casync
