#include "bare.hpp"

#include "codec/cpu/kernels/codes.hpp"
#include "codec/cpu/kernels/philox.hpp"
#include "codec/cpu/kernels/simd.hpp"

namespace casync::bench::CASYNC_KERNEL_ISA {
namespace {

using namespace casync::codec::CASYNC_KERNEL_ISA;
using casync::codec::RandomKey;

constexpr std::size_t kUnit = 4096;

/// The bits of a payload as numbers from 0.5 to 1: as they are they would make NaN of the residuals, which the codecs
/// then leave alone.
CASYNC_INLINE F32x16 line_at(const std::byte* from, std::size_t line) {
  const U32x16 bits = as_bits(load(reinterpret_cast<const float*>(from) + 16 * line));
  return as_floats((bits & 0x007fffffU) | splat_u32(0x3f000000U));
}
CASYNC_INLINE void write_line(std::byte* to, std::size_t line, const F32x16& value, bool past_caches) {
  float* const at = reinterpret_cast<float*>(to) + 16 * line;
  if (past_caches)
    stream(at, value);
  else
    store(at, value);
}

void move(const Streams& streams) {
  const auto lines = static_cast<std::size_t>(streams.lines);
  for (std::size_t line = 0; line < streams.count / 16 / lines; ++line) {
    F32x16 decoded{};
    for (const std::byte* const peer : streams.peer)
      if (peer != nullptr) decoded = decoded + line_at(peer, line);
    F32x16 encoded{};
    for (std::size_t i = 16 * lines * line; i < 16 * lines * (line + 1); i += 16) {
      F32x16 value = decoded;
      if (streams.own != nullptr) value = value + load(streams.own + i);
      if (streams.update != nullptr) {
        value = value + load(streams.update + i);
        store(streams.update + i, value);
      }
      if (streams.out != nullptr) stream(streams.out + i, value);
      encoded = encoded + value;
    }
    if (streams.payload != nullptr) write_line(streams.payload, line, encoded, streams.stream_payload);
  }
}

CASYNC_INLINE U32x16 whole_part(const F32x16& a) {
  U32x16 out;
  for (int k = 0; k < kRegisters; ++k)
    out.r[k] = __builtin_bit_cast(UintRegister, __builtin_convertvector(a.r[k], IntRegister));
  return out;
}

template <int kBits>
void terngrad_unit(const float* from, const RandomKey& key, std::byte* payload) {
  constexpr std::uint32_t kLevels = (1U << kBits) - 1U;
  F32x16 low = load(from);
  F32x16 high = low;
  for (std::size_t i = 16; i < kUnit; i += 16) {
    low = smaller(load(from + i), low);
    high = larger(load(from + i), high);
  }
  const float minimum = fold<Smaller>(low);
  const float scale = 65536.0F * static_cast<float>(kLevels) / (fold<Larger>(high) - minimum);
  const F32x16 slope = splat(scale);
  const F32x16 offset = splat(0.5F - minimum * scale);
  std::uint8_t codes[kUnit];
  for (std::size_t begin = 0; begin < kUnit; begin += 128) {
    U32x16 words[4];
    draw(key, key.coordinate + begin, words);
    for (std::size_t j = 0; j < 8; ++j) {
      const U32x16 random = j % 2 == 0 ? words[j / 2] & 0xffffU : words[j / 2] >> 16;
      U32x16 code = (whole_part(load(from + begin + 16 * j) * slope + offset) + random) >> 16;
      for (auto& lanes : code.r) lanes = lanes < kLevels ? lanes : UintRegister{} + kLevels;
      store_bytes(codes + begin + 16 * j, code);
    }
  }
  if constexpr (kBits == 8)
    __builtin_memcpy(payload, codes, kUnit);
  else
    pack<kBits>(codes, kUnit * kBits / 8, payload);
}

template <int kBits>
void terngrad_units(const Streams& streams) {
  RandomKey key{.name_hash = 42};
  for (std::size_t begin = 0; begin + kUnit <= streams.count; begin += kUnit) {
    key.coordinate = begin;
    terngrad_unit<kBits>(streams.own + begin, key, streams.payload + begin * kBits / 8);
  }
}

void terngrad(const Streams& streams) {
  if (streams.lines == 16) terngrad_units<2>(streams);
  if (streams.lines == 8) terngrad_units<4>(streams);
  if (streams.lines == 4) terngrad_units<8>(streams);
}

}  // namespace

const Bare kBare{move, terngrad};

}  // namespace casync::bench::CASYNC_KERNEL_ISA
