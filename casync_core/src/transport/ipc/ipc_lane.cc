#include "transport/ipc/ipc_lane.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"

namespace casync::ipc {
namespace {

constexpr unsigned char kPattern = 0xC5;
constexpr std::size_t kProbe = 256;  // bytes of the pattern that are read

cuda::DevicePointer address(const std::byte* of) { return reinterpret_cast<cuda::DevicePointer>(of); }

}  // namespace

IpcLane::IpcLane(int device, LaneWorld world, std::function<void()> ring)
    : driver_(cuda::driver()),
      device_(driver_, device),
      world_(world),
      bell_(std::move(ring)),
      landings_(&Landings::of(device_)),
      peers_(world.size) {
  const cuda::Device::Current current(device_);
  events_ = std::make_unique<cuda::Events>(device_);
  out_ = device_.make_stream();
  in_ = device_.make_stream();
  peers_[world_.rank].mine = peers_[world_.rank].theirs = Reach::yes;
}

IpcLane::~IpcLane() { close(0); }

/// What fails of the driver ends the lane, and is no exception to who calls it.
template <typename Work>
void IpcLane::guarded(const Work& work) {
  try {
    const cuda::Device::Current current(device_);
    work();
  } catch (const DeviceFailure& failure) {
    if (failure_.empty()) failure_ = detail::concat("device ", device_.ordinal(), " failed: ", failure.what());
  }
}

/// The message: the word, a flag, and, of a landing that the peer has not opened yet, its handle.
void IpcLane::say(Rank peer, Word word, const Landing* landing, bool flag) {
  std::vector<std::byte> message;
  ByteWriter writer(message);
  writer.put(word);
  writer.put(flag);
  if (landing != nullptr) {
    const bool is_new = peers_[peer].shown.insert(landing->number).second;
    writer.put(landing->number);
    writer.put(is_new);
    if (is_new) writer.put(landing->handle);
  }
  tell_(peer, message);
}

/// The first reason is told to all, who have no lane then either.
void IpcLane::refuse(const std::string& why) {
  if (!refusal_.empty()) return;
  refusal_ = why;
  std::vector<std::byte> message;
  message.reserve(why.size() + 64);
  ByteWriter writer(message);
  writer.put(Word::refused);
  writer.put(false);
  writer.put_text(detail::concat("rank ", world_.rank, ": ", why));
  for (Rank peer = 0; peer < world_.size; ++peer) {
    if (peer != world_.rank) tell_(peer, message);
  }
}

void IpcLane::open(Tell tell) {
  tell_ = std::move(tell);
  try {
    const cuda::Device::Current current(device_);
    probe_ = &landings_->take(kProbe);
    CASYNC_CUDA(driver_, cuMemsetD8Async, probe_->memory, kPattern, kProbe, out_);
    CASYNC_CUDA(driver_, cuStreamSynchronize, out_);
  } catch (const DeviceFailure& failure) {
    refuse(failure.what());
    probe_ = nullptr;
  }
  for (Rank peer = 0; peer < world_.size; ++peer) {
    if (peer != world_.rank) say(peer, Word::hello, probe_);
  }
}

void IpcLane::hear(Rank peer, std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto word = reader.get<Word>();
  const bool flag = reader.get<bool>();
  switch (word) {
    case Word::hello:
      return greeted(peer, reader);
    case Word::answer:
      peers_[peer].theirs = flag ? Reach::yes : Reach::no;
      return;
    case Word::refused:
      if (refusal_.empty()) refusal_ = reader.get_text();
      return;
    case Word::land:
      return granted(peer, reader);
    case Word::leave:
      peers_[peer].granted.push_back({.is_wanted = false});
      return go(peer);
    case Word::landed:
      return landed(peer);
  }
  throw CorruptPayload(detail::concat("a word of the lane of rank ", peer, " that is none"), {.peer = peer});
}

void IpcLane::greeted(Rank peer, ByteReader& reader) {
  bool reaches = false;
  if (reader.left() > 0 && probe_ != nullptr) {
    try {
      const cuda::Device::Current current(device_);
      const cuda::DevicePointer there = open_landing(peer, reader);
      std::byte* seen = nullptr;
      CASYNC_CUDA(driver_, cuMemHostAlloc, reinterpret_cast<void**>(&seen), kProbe, cuda::kPortable);
      const cuda::Result copied = driver_.cuMemcpyDtoHAsync_v2(seen, there, kProbe, in_);
      const cuda::Result ended = driver_.cuStreamSynchronize(in_);
      reaches = copied == cuda::kSuccess && ended == cuda::kSuccess &&
                std::all_of(seen, seen + kProbe, [](std::byte byte) { return byte == std::byte{kPattern}; });
      driver_.cuMemFreeHost(seen);
      if (!reaches)
        refuse(detail::concat("what rank ", peer, " wrote on its device is not what this rank reads there"));
    } catch (const DeviceFailure& failure) {
      refuse(detail::concat("the memory of rank ", peer, "'s device is out of reach: ", failure.what()));
    }
  }
  peers_[peer].mine = reaches ? Reach::yes : Reach::no;
  say(peer, Word::answer, nullptr, reaches);
}

bool IpcLane::ready() const {
  return refusal_.empty() && std::ranges::all_of(peers_, [](const Peer& peer) {
           return peer.mine == Reach::yes && peer.theirs == Reach::yes;
         });
}

/// A landing of the peer, opened once. Its number comes next, and its handle if it is new.
cuda::DevicePointer IpcLane::open_landing(Rank peer, ByteReader& reader) {
  const auto number = reader.get<std::uint32_t>();
  auto& opened = peers_[peer].opened;
  if (reader.get<bool>()) {
    const auto handle = reader.get<cuda::IpcHandle>();
    cuda::DevicePointer memory = 0;
    CASYNC_CUDA(driver_, cuIpcOpenMemHandle_v2, &memory, handle, cuda::kLazyPeerAccess);
    opened[number] = memory;
  }
  const auto at = opened.find(number);
  if (at == opened.end())
    throw CorruptPayload(detail::concat("rank ", peer, " speaks of memory that it never showed"), {.peer = peer});
  return at->second;
}

void IpcLane::send(Rank peer, MemoryRef body, std::uint64_t id) {
  peers_[peer].sent.push_back({.memory = body, .id = id});
  go(peer);
}

void IpcLane::accept(Rank peer, MemoryRef body, std::uint64_t id) {
  if (body.data == nullptr) {
    say(peer, Word::leave);
    unmoved_accepted_.push_back(id);
    return;
  }
  guarded([&] {
    const Landing& landing = landings_->take(body.bytes);
    peers_[peer].accepted.push_back({.memory = body, .id = id, .landing = &landing});
    say(peer, Word::land, &landing);
  });
}

void IpcLane::granted(Rank peer, ByteReader& reader) {
  guarded([&] {
    peers_[peer].granted.push_back({.memory = open_landing(peer, reader)});
    go(peer);
  });
}

/// What is sent and what is granted meet in order.
void IpcLane::go(Rank peer) {
  auto& there = peers_[peer];
  while (!there.sent.empty() && !there.granted.empty()) {
    const Body body = there.sent.front();
    const Grant grant = there.granted.front();
    there.sent.pop_front();
    there.granted.pop_front();
    if (grant.is_wanted) {
      guarded([&] { copy({.peer = peer, .id = body.id}, grant.memory, address(body.memory.data), body.memory.bytes); });
    } else {
      unmoved_sent_.push_back(body.id);
    }
  }
}

void IpcLane::landed(Rank peer) {
  auto& accepted = peers_[peer].accepted;
  if (accepted.empty())
    throw CorruptPayload(detail::concat("a body of rank ", peer, " came that was not accepted"), {.peer = peer});
  const Body body = accepted.front();
  accepted.pop_front();
  guarded([&] {
    copy({.peer = peer, .comes = true, .id = body.id, .landing = body.landing}, address(body.memory.data),
         body.landing->memory, body.memory.bytes);
  });
}

void IpcLane::copy(Copy what, cuda::DevicePointer to, cuda::DevicePointer from, std::size_t bytes) {
  const cuda::Stream stream = what.comes ? in_ : out_;
  if (bytes > 0) CASYNC_CUDA(driver_, cuMemcpyDtoDAsync_v2, to, from, bytes, stream);
  what.over = events_->take();
  copies_.push_back(what);
  CASYNC_CUDA(driver_, cuEventRecord, what.over, stream);
  bell_.ring_after(driver_, stream);
}

bool IpcLane::poll(TransportSink& sink) {
  if (!failure_.empty()) return false;
  bool reported = !unmoved_sent_.empty() || !unmoved_accepted_.empty();
  for (const std::uint64_t id : std::exchange(unmoved_sent_, {})) sink.on_sent(id);
  for (const std::uint64_t id : std::exchange(unmoved_accepted_, {})) sink.on_body(id);
  std::vector<Copy> over;
  guarded([&] {
    // Each of the two streams is in order, and so is each peer's part of it.
    std::array<bool, 2> waits{};
    for (auto at = copies_.begin(); at != copies_.end();) {
      bool& stream_waits = waits[at->comes ? 1 : 0];
      if (!stream_waits) stream_waits = !events_->is_over(at->over);
      if (stream_waits) {
        ++at;
      } else {
        events_->give(at->over);
        over.push_back(*at);
        at = copies_.erase(at);
      }
    }
  });
  for (const Copy& copy : over) {
    if (copy.comes) {
      landings_->give(*copy.landing);
      sink.on_body(copy.id);
    } else {
      say(copy.peer, Word::landed);
      sink.on_sent(copy.id);
    }
  }
  return reported || !over.empty();
}

/// Whether nothing is copied any more, for which it waits.
bool IpcLane::ends_by(Nanoseconds deadline) {
  const auto is_idle = [&](cuda::Stream stream) { return driver_.cuStreamQuery(stream) != cuda::kNotReady; };
  while (!is_idle(out_) || !is_idle(in_)) {
    if (steady_now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

/// Landings that a peer may still write stay out for good, and so does what the device has not ended with.
void IpcLane::close(Nanoseconds patience) {
  if (events_ == nullptr) return;
  bell_.silence();
  bool has_ended = false;
  guarded([&] {
    if (!ends_by(steady_now() + patience)) return;
    for (const Copy& copy : copies_) {
      events_->give(copy.over);
      if (copy.landing != nullptr) landings_->give(*copy.landing);
    }
    copies_.clear();
    for (Peer& peer : peers_) {
      for (const auto& [number, memory] : peer.opened) driver_.cuIpcCloseMemHandle(memory);
    }
    if (probe_ != nullptr) landings_->give(*probe_);
    events_.reset();
    for (const cuda::Stream stream : {out_, in_}) driver_.cuStreamDestroy_v2(stream);
    has_ended = true;
  });
  if (has_ended) return;
  bell_.abandon();
  [[maybe_unused]] const auto* const kept = events_.release();
}

}  // namespace casync::ipc
