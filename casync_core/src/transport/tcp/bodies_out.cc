#include "transport/tcp/bodies_out.hpp"

#include <algorithm>

namespace casync::transport::tcp {

void BodiesOut::add(std::span<const std::byte> memory, std::uint64_t id) { bodies_.push_back({memory, id}); }

std::optional<Piece> BodiesOut::next() {
  if (!waits()) return std::nullopt;
  Body& body = bodies_[next_ - first_];
  const std::size_t bytes = std::min(chunk_bytes_, body.memory.size() - body.taken);
  const Piece piece{{next_, body.memory.size(), body.taken, bytes}, body.memory.subspan(body.taken, bytes)};
  body.taken += bytes;
  if (body.taken == body.memory.size()) ++next_;
  return piece;
}

std::optional<std::uint64_t> BodiesOut::sent(const Chunk& chunk) {
  Body& body = bodies_[chunk.body - first_];
  body.sent += chunk.bytes;
  if (body.sent < body.memory.size()) return std::nullopt;
  body.done = true;
  const std::uint64_t id = body.id;
  while (!bodies_.empty() && bodies_.front().done) {
    bodies_.pop_front();
    ++first_;
  }
  return id;
}

void BodiesOut::clear() {
  first_ = next_ = first_ + bodies_.size();
  bodies_.clear();
}

void StreamOut::take(BodiesOut& bodies) {
  std::size_t bytes = 0;
  while (pieces_.size() < kPieces && bytes < kBytes) {
    const auto piece = bodies.next();
    if (!piece) return;
    bytes += piece->memory.size();
    pieces_.push_back(*piece);
  }
}

std::span<iovec> StreamOut::gather() {
  std::size_t count = 0, skip = sent_;
  const auto add = [&](const void* memory, std::size_t bytes) {
    const std::size_t skipped = std::min(skip, bytes);
    skip -= skipped;
    if (bytes > skipped) parts_[count++] = {static_cast<char*>(const_cast<void*>(memory)) + skipped, bytes - skipped};
  };
  for (const Piece& piece : pieces_) {
    add(&piece.chunk, sizeof piece.chunk);
    add(piece.memory.data(), piece.memory.size());
  }
  return std::span(parts_).first(count);
}

void StreamOut::sent(std::size_t bytes, std::vector<Chunk>& whole) {
  sent_ += bytes;
  while (!pieces_.empty() && sent_ >= sizeof(Chunk) + pieces_.front().memory.size()) {
    sent_ -= sizeof(Chunk) + pieces_.front().memory.size();
    whole.push_back(pieces_.front().chunk);
    pieces_.pop_front();
  }
}

void StreamOut::clear() {
  pieces_.clear();
  sent_ = 0;
}

}  // namespace casync::transport::tcp
