#include "transport/tcp/bodies_in.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "casync/error.hpp"

namespace casync::transport::tcp {

void BodiesIn::accept(std::span<std::byte> memory, std::uint64_t id) { bodies_.push_back({memory, id}); }

std::optional<std::span<std::byte>> BodiesIn::place(const Chunk& chunk) const {
  if (chunk.body < first_) throw CorruptPayload("it sent a part of a body that is complete");
  if (chunk.body - first_ >= bodies_.size()) return std::nullopt;
  const Body& body = bodies_[chunk.body - first_];
  if (chunk.whole != body.memory.size()) {
    throw CorruptPayload(
        detail::concat("it sent a body of ", chunk.whole, " bytes where ", body.memory.size(), " were accepted"));
  }
  if (body.done || chunk.offset > chunk.whole || chunk.bytes > chunk.whole - chunk.offset ||
      chunk.bytes > chunk.whole - body.there) {
    throw CorruptPayload(detail::concat("it sent bytes ", chunk.offset, " to ", chunk.offset + chunk.bytes,
                                        " of a body of ", chunk.whole));
  }
  return body.memory.subspan(chunk.offset, chunk.bytes);
}

std::optional<Arrived> BodiesIn::arrived(const Chunk& chunk) {
  Body& body = bodies_[chunk.body - first_];
  body.there += chunk.bytes;
  if (body.there < body.memory.size()) return std::nullopt;
  body.done = true;
  const Arrived whole{body.id, body.memory.size()};
  while (!bodies_.empty() && bodies_.front().done) {
    bodies_.pop_front();
    ++first_;
  }
  return whole;
}

void BodiesIn::clear() {
  first_ += bodies_.size();
  bodies_.clear();
}

void StreamIn::received(std::size_t bytes, std::span<const std::byte> more, BodiesIn& bodies,
                        std::vector<Arrived>& whole) {
  const std::size_t direct = std::min(bytes, rest_.size());
  if (direct > 0) advance(direct, bodies, whole);
  parse(more.first(bytes - direct), bodies, whole);
}

bool StreamIn::resume(BodiesIn& bodies, std::vector<Arrived>& whole) {
  if (!begin(bodies, whole)) return false;
  const auto bytes = std::exchange(held_, {});
  parse(bytes, bodies, whole);
  return !is_held_;
}

void StreamIn::parse(std::span<const std::byte> bytes, BodiesIn& bodies, std::vector<Arrived>& whole) {
  while (!bytes.empty()) {
    if (is_held_) {
      held_.insert(held_.end(), bytes.begin(), bytes.end());
      return;
    }
    if (!rest_.empty()) {
      const std::size_t count = std::min(bytes.size(), rest_.size());
      std::memcpy(rest_.data(), bytes.data(), count);
      advance(count, bodies, whole);
      bytes = bytes.subspan(count);
      continue;
    }
    const std::size_t count = std::min(bytes.size(), header_.size() - header_bytes_);
    std::memcpy(header_.data() + header_bytes_, bytes.data(), count);
    header_bytes_ += count;
    bytes = bytes.subspan(count);
    if (header_bytes_ == header_.size()) begin(bodies, whole);
  }
}

/// The header is there.
bool StreamIn::begin(BodiesIn& bodies, std::vector<Arrived>& whole) {
  std::memcpy(&chunk_, header_.data(), sizeof chunk_);
  const auto place = bodies.place(chunk_);
  is_held_ = !place;
  if (is_held_) return false;
  header_bytes_ = 0;
  rest_ = *place;
  if (rest_.empty()) advance(0, bodies, whole);
  return true;
}

void StreamIn::advance(std::size_t bytes, BodiesIn& bodies, std::vector<Arrived>& whole) {
  rest_ = rest_.subspan(bytes);
  if (!rest_.empty()) return;
  if (const auto body = bodies.arrived(chunk_)) whole.push_back(*body);
}

}  // namespace casync::transport::tcp
