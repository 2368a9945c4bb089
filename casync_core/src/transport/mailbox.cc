#include "transport/mailbox.hpp"

#include <cstring>
#include <new>

#include "casync/error.hpp"

namespace casync::transport {
namespace {

/// In the place of `bytes`: the rest of the ring is empty, and what follows begins at its start.
constexpr std::uint64_t kWrap = ~std::uint64_t{0};

MailboxCell* cell_of(std::span<std::byte> memory) {
  CASYNC_CHECK(memory.size() > sizeof(MailboxCell) && memory.size() % sizeof(MailHeader) == 0, memory.size(),
               " bytes are no mailbox");
  return std::launder(reinterpret_cast<MailboxCell*>(memory.data()));
}

MailHeader header_at(std::span<const std::byte> ring, std::uint64_t position) {
  MailHeader header;
  std::memcpy(&header, ring.data() + position, sizeof header);
  return header;
}

void put_header(std::span<std::byte> ring, std::uint64_t position, const MailHeader& header) {
  std::memcpy(ring.data() + position, &header, sizeof header);
}

}  // namespace

MailboxWriter::MailboxWriter(std::span<std::byte> memory)
    : cell_(cell_of(memory)), ring_(memory.subspan(sizeof(MailboxCell))) {}

/// Whether the ring may be written up to `end`, in bytes so far.
bool MailboxWriter::has_room(std::uint64_t end) {
  if (end - read_ <= ring_.size()) return true;
  read_ = cell_->read.load(std::memory_order_acquire);
  if (end - read_ <= ring_.size()) return true;
  // The flag before the look, as the reader writes its count before it looks at the flag: one of both sees the other.
  cell_->starved.store(1);
  read_ = cell_->read.load();
  if (end - read_ > ring_.size()) return false;
  cell_->starved.store(0);
  return true;
}

bool MailboxWriter::put(std::uint64_t kind, std::span<const std::byte> message) {
  const std::uint64_t needed = sizeof(MailHeader) + whole_lines(message.size());
  CASYNC_CHECK(2 * needed <= ring_.size(), "a message of ", message.size(), " bytes does not fit into a mailbox");
  std::uint64_t start = written_ % ring_.size();
  std::uint64_t skipped = 0;
  if (start + needed > ring_.size()) skipped = ring_.size() - start;
  if (!has_room(written_ + skipped + needed)) return false;
  if (skipped > 0) {
    put_header(ring_, start, {kWrap, 0});
    start = 0;
  }
  put_header(ring_, start, {message.size(), kind});
  if (!message.empty()) std::memcpy(ring_.data() + start + sizeof(MailHeader), message.data(), message.size());
  written_ += skipped + needed;
  cell_->written.store(written_, std::memory_order_release);
  return true;
}

MailboxReader::MailboxReader(std::span<std::byte> memory)
    : cell_(cell_of(memory)), ring_(memory.subspan(sizeof(MailboxCell))) {}

std::optional<MailboxReader::Message> MailboxReader::front() {
  if (written_ == read_) {
    written_ = cell_->written.load(std::memory_order_acquire);
    if (written_ == read_) return std::nullopt;
  }
  std::uint64_t start = read_ % ring_.size();
  std::uint64_t skipped = 0;
  MailHeader header = header_at(ring_, start);
  if (header.bytes == kWrap) {
    skipped = ring_.size() - start;
    start = 0;
    header = header_at(ring_, 0);
  }
  const std::uint64_t there = written_ - read_;
  if (there > ring_.size() || header.bytes > ring_.size() ||
      skipped + sizeof(MailHeader) + whole_lines(header.bytes) > there ||
      start + sizeof(MailHeader) + header.bytes > ring_.size()) {
    throw CorruptPayload("a mailbox holds what no sender writes");
  }
  next_ = read_ + skipped + sizeof(MailHeader) + whole_lines(header.bytes);
  return Message{header.kind, ring_.subspan(start + sizeof(MailHeader), header.bytes)};
}

bool MailboxReader::pop() {
  read_ = next_;
  cell_->read.store(read_);
  return cell_->starved.load() != 0 && cell_->starved.exchange(0) != 0;
}

}  // namespace casync::transport
