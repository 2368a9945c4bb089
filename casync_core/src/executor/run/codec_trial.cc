#include "executor/run/codec_trial.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include "casync/codec.hpp"
#include "executor/memory/gradient_state.hpp"

namespace casync {
namespace {

constexpr std::array<std::int64_t, 2> kElements{64 << 10, 1 << 20};  // two sizes tell a call's fixed cost from the rest
constexpr int kRepeats = 5;

double seconds_of(const Codec& codec, Segment& segment) {
  const auto begin = std::chrono::steady_clock::now();
  codec.run(std::span(&segment, 1));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// About a square, of as many elements as make one.
Shape matrix_of(std::int64_t numel) {
  const auto side = std::max<std::int64_t>(static_cast<std::int64_t>(std::sqrt(static_cast<double>(numel))), 1);
  return {side, numel / side};
}

/// A gradient and what a codec needs beside it.
class Data {
 public:
  Data(const Codec& codec, DType dtype, std::vector<std::byte> values)
      : values_(std::move(values)), decoded_(values_.size()) {
    const Shape vector{static_cast<std::int64_t>(values_.size() / size_of(dtype)), 1};
    gradient_.shape = codec.applies(vector, Codec::kLateStep) ? vector : matrix_of(vector.numel());
    const std::int64_t numel = gradient_.shape.numel();
    values_.resize(static_cast<std::size_t>(numel) * size_of(dtype));
    gradient_.dtype = dtype;
    gradient_.range = {0, numel};
    raw_ = {values_.data(), values_.size(), true};
    if (codec.info().feedback == Feedback::wrapper) residual_.resize(static_cast<std::size_t>(numel));
    for (int round = 0; round < std::ssize(codec.info().rounds); ++round) {
      sent_.emplace_back(codec.bound(gradient_.shape, dtype, gradient_.range, round));
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

  double bytes() const { return static_cast<double>(values_.size()); }

  struct Times {
    double encode_s = 0;
    double decode_s = 0;
    std::size_t payload_bytes = 0;
  };
  /// All rounds, as if this were the only rank.
  Times time(const Codec& codec) {
    Times times;
    std::span<const std::byte> previous;
    for (std::size_t round = 0; round < sent_.size(); ++round) {
      Segment encode = gradient_;
      encode.round = static_cast<std::uint8_t>(round);
      encode.previous = previous;
      encode.sources = {&raw_, 1};
      encode.residual = residual_.empty() ? nullptr : residual_.data();
      encode.payload = sent_[round];
      times.encode_s += seconds_of(codec, encode);
      times.payload_bytes += encode.payload_bytes;
      const Source encoded{sent_[round].data(), encode.payload_bytes, false};
      Segment merge = gradient_;
      merge.round = encode.round;
      merge.previous = previous;
      merge.sources = {&encoded, 1};
      const bool last = round + 1 == sent_.size();
      if (last) merge.raw_out = decoded_.data();
      if (!last) merge.payload = merged_[round];
      times.decode_s += seconds_of(codec, merge);
      previous = std::span(merged_[round]).first(merge.payload_bytes);
    }
    return times;
  }

 private:
  std::vector<std::byte> values_, decoded_;
  std::vector<float> residual_;
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

GradientCopy::GradientCopy(std::string_view name, DType type, std::int64_t all, const void* values)
    : tensor(name), dtype(type), numel(all) {
  const auto* const from = static_cast<const std::byte*>(values);
  const std::int64_t pieces = numel > kPieces * kPieceElements ? kPieces : 1;
  const std::int64_t length = pieces == 1 ? numel : kPieceElements;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const auto begin = static_cast<std::size_t>(numel / pieces * piece) * size_of(dtype);
    elements.insert(elements.end(), from + begin, from + begin + static_cast<std::size_t>(length) * size_of(dtype));
  }
}

void CodecTrial::run() {
  const auto codec = make_codec(codec_);
  if (gradient_) {
    run_on_gradient(*codec);
  } else {
    run_on_scratch(*codec);
  }
}

void CodecTrial::run_on_scratch(const Codec& codec) {
  for (const std::int64_t numel : kElements) {
    std::vector<std::byte> values(static_cast<std::size_t>(numel) * sizeof(float));
    fill_for_trial({reinterpret_cast<float*>(values.data()), static_cast<std::size_t>(numel)});
    Data data(codec, DType::float32, std::move(values));
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const auto [encode_s, decode_s, payload_bytes] = data.time(codec);
      if (repeat == 0) continue;  // caches and page tables are cold
      const auto bytes = static_cast<double>(numel) * sizeof(float);
      results_.push_back({CostKind::encode, codec_, bytes, encode_s, Basis::scratch});
      results_.push_back({CostKind::decode, codec_, bytes, decode_s, Basis::scratch});
    }
  }
}

void CodecTrial::run_on_gradient(const Codec& codec) {
  Data data(codec, gradient_->dtype, std::exchange(gradient_->elements, {}));
  const double bytes = data.bytes();
  EncodedSize size{gradient_->tensor,
                   codec_,
                   static_cast<double>(gradient_->numel) * static_cast<double>(size_of(gradient_->dtype)),
                   0,
                   0,
                   true};
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    const auto [encode_s, decode_s, payload_bytes] = data.time(codec);
    if (repeat == 0) continue;
    results_.push_back({CostKind::encode, codec_, bytes, encode_s, Basis::copy});
    results_.push_back({CostKind::decode, codec_, bytes, decode_s, Basis::copy});
    size.raw_bytes += bytes;
    size.payload_bytes += static_cast<double>(payload_bytes);
  }
  size_ = size;
}

}  // namespace casync
