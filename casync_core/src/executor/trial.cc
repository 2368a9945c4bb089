#include "executor/trial.hpp"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>

#include "casync/codec.hpp"
#include "executor/kept.hpp"

namespace casync {
namespace {

constexpr std::array<std::int64_t, 2> kElements{64 << 10, 1 << 20};  // two sizes tell a call's fixed cost from the rest
constexpr int kRepeats = 5;
constexpr std::uint32_t kLastStep = ~0U;

double seconds_of(const Codec& codec, Segment& segment) {
  const auto begin = std::chrono::steady_clock::now();
  codec.run(std::span(&segment, 1));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A gradient and what a codec needs beside it.
class Data {
 public:
  Data(const Codec& codec, std::int64_t numel) : values_(static_cast<std::size_t>(numel)), decoded_(values_.size()) {
    const Shape vector{numel, 1};
    const auto side = static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel)));
    gradient_.shape = codec.applies(vector, kLastStep) ? vector : Shape{side, numel / side};
    gradient_.range = {0, numel};
    fill_for_trial(values_);
    raw_ = {values_.data(), values_.size() * sizeof(float), true};
    if (codec.info().feedback == Feedback::wrapper) residual_.resize(values_.size());
    for (int round = 0; round < std::ssize(codec.info().rounds); ++round) {
      sent_.emplace_back(codec.bound(gradient_.shape, DType::float32, gradient_.range, round));
      merged_.emplace_back(sent_.back().size());
    }
    state_.emplace(codec, gradient_);
    gradient_.state = state_->arrays();
    if (codec.agreed() == 0) return;
    std::vector<float> agreed(static_cast<std::size_t>(codec.agreed()));
    gradient_.sources = {&raw_, 1};
    codec.propose(gradient_, agreed);
    codec.agree(gradient_, agreed);
  }

  struct Seconds {
    double encode = 0;
    double decode = 0;
  };
  /// All rounds, as if this were the only rank.
  Seconds time(const Codec& codec) {
    Seconds seconds;
    std::span<const std::byte> previous;
    for (std::size_t round = 0; round < sent_.size(); ++round) {
      Segment encode = gradient_;
      encode.round = static_cast<std::uint8_t>(round);
      encode.previous = previous;
      encode.sources = {&raw_, 1};
      encode.residual = residual_.empty() ? nullptr : residual_.data();
      encode.payload = sent_[round];
      seconds.encode += seconds_of(codec, encode);
      const Source encoded{sent_[round].data(), encode.payload_bytes, false};
      Segment merge = gradient_;
      merge.round = encode.round;
      merge.previous = previous;
      merge.sources = {&encoded, 1};
      const bool last = round + 1 == sent_.size();
      if (last) merge.raw_out = decoded_.data();
      if (!last) merge.payload = merged_[round];
      seconds.decode += seconds_of(codec, merge);
      previous = std::span(merged_[round]).first(merge.payload_bytes);
    }
    return seconds;
  }

 private:
  std::vector<float> values_, decoded_, residual_;
  std::vector<std::vector<std::byte>> sent_, merged_;  // per round
  std::optional<ScratchState> state_;
  Source raw_;
  Segment gradient_;  // without sources and outputs
};

}  // namespace

void fill_for_trial(std::span<float> values) {
  std::uint32_t random = 1;
  for (float& value : values) {
    random = random * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31F;
  }
}

void Trial::run() {
  const auto codec = make_codec(codec_);
  for (const std::int64_t numel : kElements) {
    Data data(*codec, numel);
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const auto [encode, decode] = data.time(*codec);
      if (repeat == 0) continue;  // caches and page tables are cold
      const auto bytes = static_cast<double>(numel) * sizeof(float);
      results_.push_back({CostKind::encode, codec_, bytes, encode});
      results_.push_back({CostKind::decode, codec_, bytes, decode});
    }
  }
}

}  // namespace casync
