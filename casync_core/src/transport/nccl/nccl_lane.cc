#include "transport/nccl/nccl_lane.hpp"

#include <algorithm>
#include <utility>

#include "casync/error.hpp"

namespace casync::nccl {

NcclLane::NcclLane(int device, LaneWorld world, Options options, std::function<void()> ring)
    : device_(cuda::driver(), device),
      world_(world),
      options_(std::move(options)),
      ring_(std::move(ring)),
      is_well_(world.size),
      order_(world.rank, world.size) {}

NcclLane::~NcclLane() { close(0); }

/// What fails of a device or of NCCL ends the lane, and is no exception to who calls it.
template <typename Work>
void NcclLane::guarded(const Work& work) {
  if (!broken_.empty()) return;
  try {
    const cuda::Device::Current current(device_);
    work();
  } catch (const DeviceFailure& failure) {
    fail(failure.what());
  }
}

void NcclLane::open(Tell tell) {
  tell_ = std::move(tell);
  if (world_.size == 1) {
    is_ready_ = true;
    return;
  }
  guarded([&] {
    nccl_ = &cuda::nccl(options_.library);
    if (world_.rank != 0) return;
    cuda::NcclId id;
    const cuda::NcclResult result = nccl_->ncclGetUniqueId(&id);
    if (result != cuda::kNcclSuccess) throw DeviceFailure(detail::concat("NCCL made no id: ", nccl_->text_of(result)));
    tell_all(Word::id, std::as_bytes(std::span(id.bytes)));
    begin(id);
  });
}

void NcclLane::begin(const cuda::NcclId& id) {
  comm_ = std::make_unique<cuda::Communicator>(*nccl_, device_, id, world_.rank, world_.size, options_.patience, ring_);
}

void NcclLane::tell_all(Word word, std::span<const std::byte> rest) {
  std::vector<std::byte> message;
  ByteWriter(message).put(word);
  message.insert(message.end(), rest.begin(), rest.end());
  for (Rank peer = 0; peer < world_.size; ++peer) {
    if (peer != world_.rank) tell_(peer, message);
  }
}

/// Once: of this rank's own communicator.
void NcclLane::say(bool is_well, const std::string& why) {
  is_well_[world_.rank] = is_well;
  if (!is_well) refusal_ = why;
  tell_all(is_well ? Word::well : Word::unwell, bytes_of(why));
  settle();
}

/// What all have said decides, and everyone hears the same.
void NcclLane::settle() {
  if (!refusal_.empty()) {
    if (comm_ != nullptr) comm_->condemn(refusal_);
    return;
  }
  is_ready_ = std::ranges::all_of(is_well_, [](const auto& well) { return well == true; });
  if (is_ready_ && failure_.empty()) failure_ = broken_;
}

/// A communicator that breaks before all have said that theirs is well may be the doing of one that never was.
void NcclLane::fail(const std::string& why) {
  if (!broken_.empty()) return;
  broken_ = why;
  if (comm_ != nullptr) comm_->condemn(why);
  if (is_well_[world_.rank]) {
    settle();
  } else if (refusal_.empty()) {
    say(false, detail::concat("device ", device_.ordinal(), " of rank ", world_.rank, ": ", why));
  }
}

void NcclLane::hear(Rank peer, std::span<const std::byte> message) {
  ByteReader reader(message);
  switch (reader.get<Word>()) {
    case Word::id: {
      const auto id = reader.get<cuda::NcclId>();
      if (refusal_.empty()) guarded([&] { begin(id); });
      return;
    }
    case Word::well:
      is_well_[peer] = true;
      return settle();
    case Word::unwell:
      is_well_[peer] = false;
      if (refusal_.empty()) refusal_ = text_of(reader.take(reader.left()));
      return settle();
    case Word::order: {
      const auto word = reader.get<LaunchOrder::Word>();
      order_.hear(peer, word, reader.get<std::uint64_t>());
      return tell_order();
    }
  }
  throw CorruptPayload(detail::concat("a word of the lane of rank ", peer, " that is none"), {.peer = peer});
}

void NcclLane::tell_order() {
  for (const auto& [peer, word, value] : order_.messages()) {
    std::vector<std::byte> message;
    ByteWriter writer(message);
    writer.put(Word::order);
    writer.put(word);
    writer.put(value);
    tell_(peer, message);
  }
}

void NcclLane::send(Rank peer, MemoryRef body, std::uint64_t id) {
  order_.send(peer, {body.data, body.bytes, id});
  tell_order();
}

void NcclLane::accept(Rank peer, MemoryRef body, std::uint64_t id) {
  order_.accept(peer, {body.data, body.bytes, id});
  tell_order();
}

bool NcclLane::poll(TransportSink& sink) {
  bool reported = report(order_.unmoved(), sink);
  guarded([&] {
    if (comm_ == nullptr || !refusal_.empty()) return;
    comm_->advance();
    if (!is_well_[world_.rank] && comm_->is_ready()) say(true, "");
  });
  while (!groups_.empty() && comm_->over() > over_) {
    reported |= report(groups_.front(), sink);
    groups_.pop_front();
    ++over_;
  }
  guarded([&] { launch(); });
  return reported;
}

/// One group: it waits for the one before to be on the stream.
void NcclLane::launch() {
  if (!is_ready_ || comm_ == nullptr || !comm_->is_ready()) return;
  const auto group = order_.next_group();
  if (group.empty()) return;
  std::vector<cuda::Communicator::Part> parts;
  for (const auto& [peer, is_send, body] : group) parts.push_back({is_send, peer, body.memory, body.bytes});
  groups_.push_back(group);
  comm_->launch(parts);
}

bool NcclLane::report(const std::vector<LaunchOrder::Exchange>& over, TransportSink& sink) {
  for (const auto& [peer, is_send, body] : over) is_send ? sink.on_sent(body.id) : sink.on_body(body.id);
  return !over.empty();
}

void NcclLane::close(Nanoseconds patience) {
  if (comm_ == nullptr) return;
  const cuda::Device::Current current(device_);
  comm_->end(patience);
  comm_.reset();
}

}  // namespace casync::nccl
