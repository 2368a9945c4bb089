#include "executor/trial.hpp"

#include <array>
#include <chrono>
#include <cstdint>

#include "casync/codec.hpp"

namespace casync {
namespace {

constexpr std::array<std::int64_t, 2> kElements{64 << 10, 1 << 20};  // two sizes tell a call's fixed cost from the rest
constexpr int kRepeats = 5;

double seconds_of(const Codec& codec, Segment& segment) {
  const auto begin = std::chrono::steady_clock::now();
  codec.run(std::span(&segment, 1));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void Trial::run() {
  const auto codec = make_codec(codec_);
  for (const std::int64_t numel : kElements) {
    const auto count = static_cast<std::size_t>(numel);
    const Shape shape{numel, 1};
    const Range range{0, numel};
    std::vector<float> values(count);
    std::uint32_t random = 1;
    for (float& value : values) {
      random = random * 1664525U + 1013904223U;
      value = static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-31F;
    }
    std::vector<float> residual(codec->info().feedback == Feedback::none ? 0 : count);
    std::vector<float> decoded(count);
    std::vector<std::byte> payload(codec->bound(shape, DType::float32, range, 0));
    const Source raw{values.data(), count * sizeof(float), true};
    Segment encode;
    encode.shape = shape;
    encode.range = range;
    encode.sources = {&raw, 1};
    encode.payload = payload;
    encode.residual = residual.empty() ? nullptr : residual.data();
    Source encoded{payload.data(), 0, false};
    Segment decode;
    decode.shape = shape;
    decode.range = range;
    decode.sources = {&encoded, 1};
    decode.raw_out = decoded.data();
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const double encoding = seconds_of(*codec, encode);
      encoded.bytes = encode.payload_bytes;
      const double decoding = seconds_of(*codec, decode);
      if (repeat == 0) continue;  // caches and page tables are cold
      const auto bytes = static_cast<double>(raw.bytes);
      results_.push_back({CostKind::encode, codec_, bytes, encoding});
      results_.push_back({CostKind::decode, codec_, bytes, decoding});
    }
  }
}

}  // namespace casync
