#include "transport/tcp/heads.hpp"

#include <cstring>

#include "casync/error.hpp"

namespace casync::transport::tcp {

void HeadsOut::add(FrameKind kind, std::span<const std::byte> head) {
  const FrameHeader header{static_cast<std::uint32_t>(head.size()), kind};
  const auto bytes = std::as_bytes(std::span(&header, 1));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  bytes_.insert(bytes_.end(), head.begin(), head.end());
}

void HeadsOut::sent(std::size_t bytes) {
  sent_ += bytes;
  if (sent_ == bytes_.size()) clear();
}

void HeadsOut::clear() {
  bytes_.clear();
  sent_ = 0;
}

std::span<std::byte> HeadsIn::room() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (kBytes - begin_ < kFrame) {
    std::memmove(memory_.get(), memory_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {memory_.get() + end_, kBytes - end_};
}

std::optional<HeadsIn::Frame> HeadsIn::next() {
  FrameHeader header{};
  if (end_ - begin_ < sizeof header) return std::nullopt;
  std::memcpy(&header, memory_.get() + begin_, sizeof header);
  if (header.bytes > host::kHeadBytes || header.kind > FrameKind::bell) {
    throw CorruptPayload(
        detail::concat("a head of kind ", static_cast<std::uint32_t>(header.kind), " and ", header.bytes, " bytes"));
  }
  if (end_ - begin_ < sizeof header + header.bytes) return std::nullopt;
  const std::byte* const head = memory_.get() + begin_ + sizeof header;
  begin_ += sizeof header + header.bytes;
  return Frame{header.kind, {head, header.bytes}};
}

}  // namespace casync::transport::tcp
