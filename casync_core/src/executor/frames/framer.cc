#include "executor/frames/framer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "casync/error.hpp"
#include "common/crc32c.hpp"
#include "common/wire.hpp"

namespace casync {

Framer::Framer(Transport& transport, std::uint32_t session_tag, bool checksums)
    : transport_(transport),
      session_tag_(session_tag),
      checksums_(checksums),
      outgoing_(transport.size(), FrameWriter(session_tag, transport.head_bytes())),
      announced_(transport.size()),
      announced_by_lane_(transport.size()),
      control_(transport.size()) {}

void Framer::append(Rank peer, const FrameEntry& entry, std::span<const std::byte> bytes) {
  FrameWriter& out = outgoing_[peer];
  if (!out.empty() && !out.has_room(bytes.size())) flush();
  const bool first = out.empty();
  out.append(entry, bytes);
  if (first) dirty_.push_back(peer);
}

void Framer::control(Rank peer, std::span<const std::byte> message) {
  const std::size_t most = FrameWriter::room(transport_.head_bytes());
  for (; message.size() > most; message = message.subspan(most)) {
    append(peer, {.kind = EntryKind::control_part, .size = most}, message.first(most));
  }
  append(peer, {.kind = EntryKind::control, .size = message.size()}, message);
}

void Framer::lane(Rank peer, std::span<const std::byte> message) {
  append(peer, {.kind = EntryKind::lane, .size = message.size()}, message);
}

void Framer::send_in_head(Rank peer, const MessageKey& key, std::span<const std::byte> data, bool encoded) {
  append(peer, {.kind = encoded ? EntryKind::encoded : EntryKind::raw, .key = key, .size = data.size()}, data);
}

void Framer::send_body(Rank peer, const MessageKey& key, MemoryRef data, bool encoded, std::uint64_t id) {
  if (data.on_device()) {
    append(peer, {.kind = EntryKind::device_body, .key = key, .size = data.bytes}, {});
    ++by_lane_.sent_messages;
    by_lane_.sent_bytes += data.bytes;
    lane_->send(peer, data, id);
    return;
  }
  if (encoded && checksums_) {
    const std::uint32_t sum = crc32c(data.span());
    append(peer, {.kind = EntryKind::encoded_body, .key = key, .size = data.bytes}, std::as_bytes(std::span(&sum, 1)));
  } else {
    append(peer, {.kind = EntryKind::body, .key = key, .size = data.bytes}, {});
  }
  // The announcement goes first, so that the receiver has accepted the body before most of it is on its way.
  flush();
  transport_.send_body(peer, data.span(), id);
}

void Framer::add_to_bulk(const MessageKey& key, std::span<const std::byte> data, bool encoded, std::uint64_t id) {
  const bool checked = encoded && checksums_;
  const BulkPart part{key, static_cast<std::uint32_t>(data.size()), checked, checked ? crc32c(data) : 0};
  CASYNC_CHECK(part.bytes == data.size(), "a message of ", data.size(), " bytes is too long for a bulk");
  ByteWriter(bulk_.parts).put(part);
  bulk_.body.insert(bulk_.body.end(), data.begin(), data.end());
  bulk_.ids.push_back(id);
}

void Framer::send_bulk(Rank peer) {
  const std::uint64_t id = kBulk | bulk_count_++;
  const Bulk& bulk = bulks_.emplace(id, std::exchange(bulk_, {})).first->second;
  append(peer, {.kind = EntryKind::bulk, .size = bulk.body.size()}, bulk.parts);
  flush();
  transport_.send_body(peer, bulk.body, id);
}

void Framer::flush() {
  for (const Rank peer : dirty_) {
    FrameWriter& out = outgoing_[peer];
    transport_.send_head(peer, std::move(out.complete()));
    out.clear();
  }
  dirty_.clear();
}

void Framer::take(Rank peer, std::span<const std::byte> head, Receiver& receiver) {
  for (FrameReader frame(session_tag_, head); frame.next();) {
    const FrameEntry& entry = frame.entry();
    const auto bytes = frame.bytes();
    const bool here = entry.kind == EntryKind::raw || entry.kind == EntryKind::encoded;
    if (entry.kind > EntryKind::control_part || (here && entry.size != entry.bytes) ||
        (entry.kind == EntryKind::device_body && lane_ == nullptr))
      throw CorruptPayload("a frame holds an entry that is none");
    if (entry.kind == EntryKind::control || entry.kind == EntryKind::control_part) {
      take_control(peer, entry.kind == EntryKind::control, bytes, receiver);
      continue;
    }
    if (entry.kind == EntryKind::lane) {
      receiver.on_lane(peer, bytes);
      continue;
    }
    if (here) {
      deliver(peer, entry.key, bytes, receiver);
    } else {
      announce(peer, entry, bytes, receiver);
    }
  }
}

void Framer::take_control(Rank peer, bool is_last, std::span<const std::byte> bytes, Receiver& receiver) {
  std::vector<std::byte>& before = control_[peer];
  if (is_last && before.empty()) return receiver.on_control(peer, bytes);
  if (bytes.size() > kLongestControl - before.size()) {
    throw CorruptPayload(detail::concat("a control message of more than ", kLongestControl, " bytes"));
  }
  before.insert(before.end(), bytes.begin(), bytes.end());
  if (is_last) receiver.on_control(peer, std::exchange(before, {}));
}

/// The bytes of a message are here.
void Framer::deliver(Rank peer, const MessageKey& key, std::span<const std::byte> bytes, Receiver& receiver) {
  const std::uint64_t message_id = new_message(peer, bytes.size());
  messages_[message_id].state = State::fresh;
  fresh_ = bytes;
  receiver.on_message(peer, key, message_id);
  if (messages_[message_id].state != State::fresh) return;
  messages_[message_id].state = State::held;
  messages_[message_id].copy.assign(bytes.begin(), bytes.end());
}

/// A body will come.
void Framer::announce(Rank peer, const FrameEntry& entry, std::span<const std::byte> bytes, Receiver& receiver) {
  std::vector<BulkPart> parts;
  if (entry.kind == EntryKind::bulk) {
    std::uint64_t all = 0;
    for (ByteReader reader(bytes); reader.left() > 0;) all += parts.emplace_back(reader.get<BulkPart>()).bytes;
    if (parts.empty() || all != entry.size) throw CorruptPayload("a bulk is not what its announcement says");
  }
  const std::uint64_t message_id = new_message(peer, entry.size);
  Message& message = messages_[message_id];
  message.state = State::announced;
  message.by_lane = entry.kind == EntryKind::device_body;
  message.checked = entry.kind == EntryKind::encoded_body;
  if (message.checked) message.crc = ByteReader(bytes).get<std::uint32_t>();
  queues_of(message)[peer].push_back(message_id);
  if (entry.kind != EntryKind::bulk) return receiver.on_message(peer, entry.key, message_id);
  // It is received whole, and its messages are delivered when they are here.
  if (!make_room(message, receiver)) return;
  message.state = State::placed;
  message.parts = std::move(parts);
  accept_in_order(message, receiver);
}

/// Memory of our own for a body.
bool Framer::make_room(Message& message, Receiver& receiver) {
  try {
    message.copy.resize(message.bytes);
  } catch (const std::exception&) {  // nothing of ours is so long: this length is the peer's alone
    receiver.on_corrupt(message.peer, detail::concat("there is no memory for a message of ", message.bytes, " bytes"),
                        {});
    return false;
  }
  message.memory = {message.copy.data(), message.bytes};
  return true;
}

void Framer::place(std::uint64_t message_id, MemoryRef memory, bool fills, std::uint64_t id, Receiver& receiver) {
  Message& message = messages_[message_id];
  if (message.bytes > memory.bytes || (fills && message.bytes < memory.bytes)) {
    receiver.on_corrupt(message.peer,
                        detail::concat("a message of ", message.bytes, " bytes came where the plan says ", memory.bytes,
                                       fills ? "" : " at most"),
                        id);
    return;
  }
  if (message.by_lane != memory.on_device()) {
    receiver.on_corrupt(message.peer,
                        detail::concat("a message came ", message.by_lane ? "by the lane of a device" : "to the host",
                                       " where the ranks agreed on the other"),
                        id);
    return;
  }
  switch (message.state) {
    case State::fresh:
    case State::held: {
      const auto from = message.state == State::fresh ? fresh_ : std::span<const std::byte>(message.copy);
      if (!from.empty()) std::memcpy(memory.data, from.data(), from.size());
      const std::size_t bytes = message.bytes;
      free_message(message_id);
      receiver.on_placed(id, bytes);
      break;
    }
    case State::announced:
      message.state = State::placed;
      message.memory = {memory.data, message.bytes, memory.kind};
      message.id = id;
      accept_in_order(message, receiver);
      break;
    case State::free:
    case State::placed:
    case State::dropped:
      CASYNC_CHECK(false, "message ", message_id, " placed twice");
  }
}

void Framer::drop(std::uint64_t message_id, Receiver& receiver) {
  Message& message = messages_[message_id];
  if (message.state == State::announced && message.by_lane) {
    message.state = State::dropped;
    message.memory = {nullptr, message.bytes, MemoryKind::device};
    accept_in_order(message, receiver);
  } else if (message.state == State::announced) {
    // The bytes come all the same; they are received into memory of our own and forgotten.
    if (!make_room(message, receiver)) return;
    message.state = State::dropped;
    accept_in_order(message, receiver);
  } else {
    free_message(message_id);
  }
}

/// What `last`, which has got its place, was in the way of.
void Framer::accept_in_order(const Message& last, Receiver& receiver) {
  const Rank peer = last.peer;
  auto& queue = queues_of(last)[peer];
  while (!queue.empty() && messages_[queue.front()].state != State::announced) {
    const std::uint64_t message_id = queue.front();
    const MemoryRef& memory = messages_[message_id].memory;
    queue.pop_front();
    receiver.on_body_begun(peer);
    if (memory.on_device()) {
      by_lane_.received_messages += memory.data != nullptr ? 1 : 0;
      by_lane_.received_bytes += memory.data != nullptr ? memory.bytes : 0;
      lane_->accept(peer, memory, message_id);
    } else {
      transport_.accept(peer, memory.span(), message_id);
    }
  }
}

void Framer::received(std::uint64_t message_id, Receiver& receiver) {
  Message& message = messages_[message_id];
  const State state = message.state;
  const std::uint64_t id = message.id;
  const std::size_t bytes = message.bytes;
  const Rank peer = message.peer;
  if (!message.parts.empty()) {
    const std::vector<BulkPart> parts = std::move(message.parts);
    const std::vector<std::byte> body = std::move(message.copy);
    message.parts.clear();
    free_message(message_id);
    receiver.on_body_done(peer, bytes);
    take_apart(peer, parts, body, receiver);
    return;
  }
  const bool intact = !message.checked || crc32c(message.memory.span()) == message.crc;
  free_message(message_id);
  receiver.on_body_done(peer, bytes);
  if (state == State::dropped) return;
  if (intact) {
    receiver.on_placed(id, bytes);
  } else {
    receiver.on_corrupt(peer, "the checksum of an encoded gradient is wrong", id);
  }
}

void Framer::take_apart(Rank peer, std::span<const BulkPart> parts, std::span<const std::byte> body,
                        Receiver& receiver) {
  for (const BulkPart& part : parts) {
    const std::span<const std::byte> bytes = body.first(part.bytes);
    body = body.subspan(part.bytes);
    if (part.checked != 0 && crc32c(bytes) != part.crc) {
      return receiver.on_corrupt(peer, "the checksum of an encoded gradient in a bulk is wrong", {});
    }
    deliver(peer, part.key, bytes, receiver);
  }
}

std::uint64_t Framer::new_message(Rank peer, std::size_t bytes) {
  if (free_.empty()) {
    free_.push_back(messages_.size());
    messages_.emplace_back();
  }
  const std::uint64_t message_id = free_.back();
  free_.pop_back();
  Message& message = messages_[message_id];
  message.peer = peer;
  message.bytes = bytes;
  message.checked = message.by_lane = false;
  return message_id;
}

void Framer::free_message(std::uint64_t message_id) {
  Message& message = messages_[message_id];
  message.state = State::free;
  // A dropped body may be large; small copies keep their capacity for the next one.
  if (message.copy.capacity() > transport_.head_bytes()) message.copy = {};
  free_.push_back(message_id);
}

}  // namespace casync
