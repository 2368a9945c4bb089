#include "cases.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

namespace casync::bench {
namespace {

struct Goal {
  const char* codec;
  double encode, feedback, decode, merge;
};
constexpr Goal kGoals[]{{"onebit", 1.3, 0.65, 1.3, 1.3},
                        {"terngrad", 0.55, 0, 1.2, 1.2},
                        {"fp16", 1.2, 0, 1.2, 1.2},
                        {"bf16", 1.2, 0, 1.2, 1.2}};

Goal goal_of(const std::string& spec) {
  for (const Goal& goal : kGoals)
    if (spec.starts_with(goal.codec)) return goal;
  return {"", 0, 0, 0, 0};
}

void run(const Codec& codec, Buffers& buffers, std::span<const Source> sources, bool encode, bool deliver,
         float* residual, float mid) {
  Segment segment;
  segment.shape = buffers.shape;
  segment.range = {0, buffers.shape.numel()};
  segment.name_hash = 42;
  segment.sources = sources;
  segment.mid = mid;
  segment.residual = residual;
  if (encode) segment.payload = buffers.payload;
  if (deliver) segment.raw_out = buffers.out.data();
  codec.run({&segment, 1});
}

}  // namespace

Buffers::Buffers(Shape gradient_shape) : shape(gradient_shape) {
  const auto n = static_cast<std::size_t>(shape.numel());
  std::span<float>* const all[]{&gradient, &out, &residual};
  for (int i = 0; i < 3; ++i) {
    memory_[i].assign(n + 16, 0.0F);
    const auto past = reinterpret_cast<std::uintptr_t>(memory_[i].data()) % 64 / sizeof(float);
    *all[i] = {memory_[i].data() + (16 - past) % 16, n};
  }
  std::uint64_t state = 1;
  for (float& value : gradient) {  // sums of uniforms: near normal, cheap to make
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      sum += static_cast<float>(static_cast<std::int64_t>(state) >> 40);
    }
    value = sum * 1e-9F;
  }
}

std::vector<Case> make_cases(const std::string& spec, Buffers& buffers) {
  const auto codec = make_codec(spec);
  const auto n = static_cast<std::size_t>(buffers.shape.numel());
  const Range whole{0, buffers.shape.numel()};
  const std::size_t bytes = codec->bound(buffers.shape, DType::float32, whole, 0);
  const double wire = static_cast<double>(bytes) / static_cast<double>(n);
  const Goal goal = goal_of(spec);

  const Source own{buffers.gradient.data(), 4 * n, true};
  buffers.payload.assign(bytes, std::byte{0});
  run(*codec, buffers, {&own, 1}, true, false, nullptr, 1.0F);
  for (auto& peer : buffers.peer) peer = buffers.payload;

  const auto payload = [&buffers](int i) { return Source{buffers.peer[i].data(), buffers.peer[i].size(), false}; };
  const auto encode = [codec, &buffers, own] { run(*codec, buffers, {&own, 1}, true, false, nullptr, 1.0F); };
  const auto feedback = [codec, &buffers, own] {
    run(*codec, buffers, {&own, 1}, true, false, buffers.residual.data(), 1.0F);
  };
  const auto decode = [codec, &buffers, payload] {
    const Source one = payload(0);
    run(*codec, buffers, {&one, 1}, false, true, nullptr, 1.0F);
  };
  const auto merge = [codec, &buffers, payload, own] {
    const Source four[]{payload(0), own, payload(1), payload(2)};
    run(*codec, buffers, four, false, true, nullptr, 1.0F);
  };
  const bool wrapped = codec->info().feedback == Feedback::wrapper;
  const auto owner = [codec, &buffers, payload, own, wrapped] {
    const Source four[]{payload(0), own, payload(1), payload(2)};
    run(*codec, buffers, four, true, true, wrapped ? buffers.residual.data() : nullptr, 0.25F);
  };
  std::vector<Case> cases;
  cases.push_back({spec, "encode", goal.encode, {4, 0, wire}, encode});
  if (wrapped) cases.push_back({spec, "encode+feedback", goal.feedback, {4, 4, wire}, feedback});
  cases.push_back({spec, "decode", goal.decode, {wire, 0, 4}, decode});
  cases.push_back({spec, "merge 3+own", goal.merge, {4 + 3 * wire, 0, 4}, merge});
  cases.push_back({spec, "owner 3+own", 0, {4 + 3 * wire, wrapped ? 4.0 : 0.0, 4 + wire}, owner});
  return cases;
}

void bare_loop(const Traffic& traffic, Buffers& buffers) {
  const std::size_t n = buffers.gradient.size();
  static volatile float sink = 0;
  constexpr std::size_t kStep = 4096;
  const auto share = [](double bytes) { return static_cast<std::size_t>(bytes / 4 * kStep); };
  // At most the gradient's length of each buffer: reads beyond that (payloads of peers) are taken from the peers'
  // bytes.
  const std::size_t reads = std::min(share(traffic.read), kStep);
  const std::size_t updates = share(traffic.update);
  const std::size_t writes = std::min(share(traffic.write), kStep);
  const float value = sink + 1.0F;
  float sum[16]{};
  for (std::size_t begin = 0; begin + kStep <= n; begin += kStep) {
    // Streams of fewer bytes per element advance more slowly, as payloads do.
    const float* const read = buffers.gradient.data() + begin / kStep * reads;
    float* const update = buffers.residual.data() + begin;
    float* const write = buffers.out.data() + begin / kStep * writes;
    if (updates == kStep) {
      for (std::size_t i = 0; i < kStep; ++i) update[i] = read[i % kStep] * 0.5F - update[i];
    } else if (reads >= writes) {
      for (std::size_t i = 0; i < writes; ++i) write[i] = read[i] * value;
      for (std::size_t i = writes; i + 16 <= reads; i += 16)
        for (std::size_t lane = 0; lane < 16; ++lane) sum[lane] += read[i + lane];
    } else {
      for (std::size_t i = 0; i < reads; ++i) write[i] = read[i] * value;
      for (std::size_t i = reads; i < writes; ++i) write[i] = value;
    }
  }
  sink = sum[0] + sum[7] > 1e30F ? 1.0F : 0.0F;
}

}  // namespace casync::bench
