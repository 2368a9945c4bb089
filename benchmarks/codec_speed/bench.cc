#include "bench.hpp"

#include <algorithm>
#include <cstring>

namespace casync::bench {
namespace {

constexpr int kStepsBefore = 8;
constexpr std::uint64_t kName = 42;

Source raw(std::span<const float> values) { return {values.data(), values.size_bytes(), true}; }

}  // namespace

const Bare& bare() {
#if defined(__x86_64__)
  if (current_isa() == Isa::avx512) return avx512::kBare;
  if (current_isa() == Isa::avx2) return avx2::kBare;
#endif
  return baseline::kBare;
}

Bench::Bench(const std::string& spec, Buffers& buffers, BareLoop loop)
    : codec_(make_codec(spec)), buffers_(buffers), loop_(loop) {
  const auto numel = static_cast<std::size_t>(buffers.shape.numel());
  const auto keep = [&](std::size_t elements, bool per_element) {
    state_.emplace_back(elements);
    if (per_element) bare_state_.emplace_back(elements);
  };
  for (const StateArray& array : codec_->state(buffers.shape)) {
    keep(static_cast<std::size_t>(array.elements), array.per_element);
    codec_->start(buffers.shape, kName, arrays_.size(), state_.back());
    arrays_.push_back(state_.back().data());
  }
  const bool wrapped = info().feedback == Feedback::wrapper;
  if (wrapped) keep(numel, true);
  const Range all{0, buffers.shape.numel()};
  for (std::size_t round = 0; round < info().rounds.size(); ++round)
    payloads_.emplace_back(codec_->bound(buffers.shape, DType::float32, all, static_cast<int>(round)));

  if (codec_->agreed() > 0) settle();
  const Work step{.own = true, .encode = true, .feedback = wrapped};
  for (int i = 0; i < kStepsBefore; ++i) run(step);
  for (int i = 0; i < kPeers; ++i) {
    run(step);
    const Payload& own = payloads_.back();
    peers_.emplace_back(own.bytes).bytes = own.bytes;
    std::memcpy(peers_.back().memory.bytes().data(), own.memory.bytes().data(), own.bytes);
  }
}

Segment Bench::segment() const {
  Segment segment;
  segment.shape = buffers_.shape;
  segment.range = {0, buffers_.shape.numel()};
  segment.name_hash = kName;
  segment.sequence = step_;
  segment.state = arrays_;
  segment.world = kPeers;
  segment.lr = 0.1F;
  segment.momentum = 0.9F;
  return segment;
}

void Bench::settle() {
  std::vector<float> values(static_cast<std::size_t>(codec_->agreed()));
  const Source gradient = raw(buffers_.gradient(step_));
  Segment first = segment();
  first.sources = {&gradient, 1};
  codec_->propose(first, values);
  codec_->agree(segment(), values);
}

void Bench::run(const Work& work) {
  if (!work.encode) return run_round(work, info().rounds.size() - 1);
  ++step_;
  for (std::size_t round = 0; round < info().rounds.size(); ++round) run_round(work, round);
}

void Bench::run_round(const Work& work, std::size_t round) {
  Source sources[kPeers + 2];
  std::size_t count = 0;
  const auto peer = [&](const Payload& payload) {
    sources[count++] = {payload.memory.bytes().data(), payload.bytes, false};
  };
  if (work.peers > 0) peer(peers_[0]);
  if (work.own) sources[count++] = raw(buffers_.gradient(step_));
  if (work.accumulate) sources[count++] = raw(buffers_.out.floats());
  for (int i = 1; i < work.peers; ++i) peer(peers_[static_cast<std::size_t>(i)]);

  Segment segment = this->segment();
  segment.round = static_cast<std::uint8_t>(round);
  segment.sources = {sources, count};
  if (round > 0) segment.previous = payloads_[round - 1].memory.bytes().first(payloads_[round - 1].bytes);
  if (work.peers > 0 && work.encode) {
    segment.mid = 1.0F / kPeers;
    segment.role = Role::owner;
  }
  if (work.feedback) segment.residual = state_.back().data();
  if (work.encode) segment.payload = payloads_[round].memory.bytes();
  if (work.deliver || work.accumulate) segment.raw_out = buffers_.out.bytes().data();
  codec_->run({&segment, 1});
  if (work.encode) payloads_[round].bytes = segment.payload_bytes;
}

Streams Bench::streams(const Work& work) {
  Streams streams;
  streams.count = static_cast<std::size_t>(buffers_.shape.numel());
  std::size_t bytes = payloads_.back().bytes;
  for (const Payload& peer : peers_) bytes = std::min(bytes, peer.bytes);
  streams.lines = (streams.count * sizeof(float) + bytes - 1) / bytes;
  if (work.own) streams.own[0] = buffers_.gradient(step_).data();
  for (int i = 0; i < work.peers; ++i) streams.peer[i] = peers_[static_cast<std::size_t>(i)].memory.bytes().data();
  std::size_t updates = 0;
  if (work.accumulate) streams.update[updates++] = buffers_.out.floats().data();
  if (work.feedback || (work.encode && info().feedback == Feedback::own))
    for (FloatArray& array : bare_state_) streams.update[updates++] = array.data();
  if (work.deliver) streams.out = buffers_.out.floats().data();
  if (work.encode) streams.payload = payloads_.back().memory.bytes().data();
  streams.stream_payload = !work.deliver && streams.lines < 4;
  return streams;
}

void Bench::run_bare(const Work& work) {
  const Streams all = streams(work);
  if (loop_.terngrad && work.encode && work.peers == 0) return bare().terngrad(all);
  if (work.accumulate && gathers(info())) return bare().scatter(all);
  const std::size_t unit = loop_.unit == 0 ? all.count : static_cast<std::size_t>(loop_.unit);
  for (std::size_t begin = 0; begin < all.count; begin += unit) {
    const auto from = [&](auto* array) { return array == nullptr ? nullptr : array + begin; };
    const auto line = [&](auto* payload) {
      return payload == nullptr ? nullptr : payload + begin * sizeof(float) / all.lines / 64 * 64;
    };
    Streams part = all;
    part.count = std::min(unit, all.count - begin);
    for (const float*& own : part.own) own = from(own);
    for (float*& update : part.update) update = from(update);
    for (const std::byte*& peer : part.peer) peer = line(peer);
    part.out = from(all.out);
    part.payload = line(all.payload);
    Streams look;
    look.count = part.count;
    look.own[0] = part.own[0];
    look.own[1] = part.update[0];
    if (work.encode)
      for (int i = 0; i < loop_.looks; ++i) seen_ += bare().move(look);
    seen_ += bare().move(part);
  }
}

}  // namespace casync::bench
