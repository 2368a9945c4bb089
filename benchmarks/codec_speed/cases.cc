#include "cases.hpp"

#include <cstdint>
#include <cstring>

#include "bare.hpp"

namespace casync::bench {
namespace {

/// Goals of each case, relative to memcpy of the gradient. Against the bare loop it is 0.8 wherever there is one.
struct CodecGoals {
  const char* codec;
  double encode, feedback, decode, decode_merge;
};
constexpr CodecGoals kGoals[]{
    {"onebit", 1.3, 0.65, 0, 1.3}, {"terngrad", 0.55, 0, 0, 1.2}, {"fp16", 1.2, 0, 1.2, 0}, {"bf16", 1.2, 0, 1.2, 0}};
constexpr double kToBare = 0.8;

CodecGoals goals_of(const std::string& spec) {
  for (const CodecGoals& goals : kGoals)
    if (spec.starts_with(goals.codec)) return goals;
  return {"", 0, 0, 0, 0};
}

/// The payloads of one codec: this rank's, and those of three peers.
struct Payloads {
  explicit Payloads(std::size_t bytes) : own(bytes), peer{Memory(bytes), Memory(bytes), Memory(bytes)} {}
  Memory own;
  Memory peer[3];
};

/// What a case reads and writes; the codec and the bare loop are given the same.
struct Work {
  int peers = 0;            ///< payloads that are read
  bool own = false;         ///< the gradient is read
  bool accumulate = false;  ///< raw_out is also the raw source
  bool encode = false;
  bool feedback = false;
  bool deliver = false;  ///< raw_out is memory of its own
};

class Bench {
 public:
  Bench(const std::string& spec, Buffers& buffers)
      : codec_(make_codec(spec)),
        buffers_(buffers),
        payloads_(codec_->bound(buffers.shape, DType::float32, {0, buffers.shape.numel()}, 0)),
        terngrad_(spec.starts_with("terngrad")) {}

  const Codec& codec() const { return *codec_; }
  const Payloads& payloads() const { return payloads_; }

  void run(const Work& work) const {
    Source sources[4];
    std::size_t count = 0;
    const auto add = [&](const void* data, std::size_t bytes, bool raw) { sources[count++] = {data, bytes, raw}; };
    const auto raw = [&](const Memory& memory) { add(memory.bytes().data(), memory.bytes().size(), true); };
    if (work.peers > 0) add(payloads_.peer[0].bytes().data(), payloads_.peer[0].bytes().size(), false);
    if (work.own) raw(buffers_.gradient);
    if (work.accumulate) raw(buffers_.residual);
    for (int i = 1; i < work.peers; ++i) add(payloads_.peer[i].bytes().data(), payloads_.peer[i].bytes().size(), false);

    Segment segment;
    segment.shape = buffers_.shape;
    segment.range = {0, buffers_.shape.numel()};
    segment.name_hash = 42;
    segment.sources = {sources, count};
    if (work.peers == 3 && work.encode) segment.mid = 0.25F;
    if (work.feedback) segment.residual = buffers_.residual.floats().data();
    if (work.encode) segment.payload = payloads_.own.bytes();
    if (work.deliver) segment.raw_out = buffers_.out.bytes().data();
    if (work.accumulate) segment.raw_out = buffers_.residual.bytes().data();
    codec_->run({&segment, 1});
  }

  void run_bare(const Work& work) const {
    Streams streams;
    streams.count = static_cast<std::size_t>(buffers_.shape.numel());
    const std::size_t bytes = payloads_.own.bytes().size();
    streams.lines = static_cast<int>((streams.count * sizeof(float) + bytes - 1) / bytes);
    if (work.own) streams.own = buffers_.gradient.floats().data();
    for (int i = 0; i < work.peers; ++i) streams.peer[i] = payloads_.peer[i].bytes().data();
    if (work.accumulate || work.feedback) streams.update = buffers_.residual.floats().data();
    if (work.deliver) streams.out = buffers_.out.floats().data();
    if (work.encode) streams.payload = payloads_.own.bytes().data();
    streams.stream_payload = !work.deliver && streams.lines < 4;
    if (terngrad_ && work.encode && work.peers == 0)
      bare().terngrad(streams);
    else
      bare().move(streams);
  }

 private:
  std::shared_ptr<const Codec> codec_;
  Buffers& buffers_;
  Payloads payloads_;
  bool terngrad_;
};

}  // namespace

Memory::Memory(std::size_t bytes) : owned_(new std::byte[bytes + 64]()) {
  const auto past = reinterpret_cast<std::uintptr_t>(owned_.get()) % 64;
  bytes_ = {owned_.get() + (64 - past) % 64, bytes};
}

Buffers::Buffers(Shape gradient_shape)
    : shape(gradient_shape),
      gradient(static_cast<std::size_t>(shape.numel()) * sizeof(float)),
      out(gradient.bytes().size()),
      residual(gradient.bytes().size()) {
  std::uint64_t state = 1;
  for (float& value : gradient.floats()) {  // sums of uniforms: near normal, cheap to make
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<float>(static_cast<std::int64_t>(state) >> 40);
    }
    value = sum * 1e-9F;
  }
}

const Bare& bare() {
#if defined(__x86_64__)
  if (current_isa() == Isa::avx512) return avx512::kBare;
  if (current_isa() == Isa::avx2) return avx2::kBare;
#endif
  return baseline::kBare;
}

std::vector<Case> make_cases(const std::string& spec, Buffers& buffers) {
  const auto bench = std::make_shared<Bench>(spec, buffers);
  const Work encode{.own = true, .encode = true};
  bench->run(encode);
  for (const Memory& peer : bench->payloads().peer)
    std::memcpy(peer.bytes().data(), bench->payloads().own.bytes().data(), peer.bytes().size());

  const CodecGoals goals = goals_of(spec);
  const bool feedback = bench->codec().info().feedback == Feedback::wrapper;
  std::vector<Case> cases;
  const auto add = [&](const char* operation, double goal, const Work& work) {
    cases.push_back({operation,
                     {goal, goal > 0 ? kToBare : 0},
                     [bench, work] { bench->run(work); },
                     [bench, work] { bench->run_bare(work); }});
  };
  add("encode", goals.encode, encode);
  if (feedback) add("encode+feedback", goals.feedback, {.own = true, .encode = true, .feedback = true});
  add("decode", goals.decode, {.peers = 1, .deliver = true});
  add("decode+merge", goals.decode_merge, {.peers = 1, .accumulate = true});
  add("merge 3+own", 0, {.peers = 3, .own = true, .deliver = true});
  add("owner 3+own", 0, {.peers = 3, .own = true, .encode = true, .feedback = feedback, .deliver = true});
  return cases;
}

}  // namespace casync::bench
