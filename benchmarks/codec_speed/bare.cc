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
  U32x16 bits = as_bits(load(reinterpret_cast<const float*>(from) + 16 * line)) & 0x007fffffU;
  for (auto& lanes : bits.r) lanes |= 0x3f000000U;
  return as_floats(bits);
}
CASYNC_INLINE void write_line(std::byte* to, std::size_t line, const F32x16& value, bool past_caches) {
  float* const at = reinterpret_cast<float*>(to) + 16 * line;
  if (past_caches)
    stream(at, value);
  else
    store(at, value);
}

template <int kOwn, int kUpdates>
float pass(const Streams& streams) {
  F32x16 all{};
  for (std::size_t line = 0; line < streams.count / 16 / streams.lines; ++line) {
    F32x16 decoded{};
    for (const std::byte* const peer : streams.peer)
      if (peer != nullptr) decoded = decoded + line_at(peer, line);
    F32x16 encoded{};
    for (std::size_t i = 16 * streams.lines * line; i < 16 * streams.lines * (line + 1); i += 16) {
      F32x16 value = decoded;
      for (int k = 0; k < kOwn; ++k) value = value + load(streams.own[k] + i);
      for (int k = 0; k < kUpdates; ++k) value = value + load(streams.update[k] + i);
      value = value * splat(0.25F);
      for (int k = 0; k < kUpdates; ++k) store(streams.update[k] + i, value);
      if (streams.out != nullptr) stream(streams.out + i, value);
      encoded = encoded + value;
    }
    if (streams.payload != nullptr) write_line(streams.payload, line, encoded, streams.stream_payload);
    all = all + encoded;
  }
  return fold<Add>(all);
}

float move(const Streams& streams) {
  constexpr float (*kPasses[3][3])(const Streams&){
      {pass<0, 0>, pass<0, 1>, pass<0, 2>}, {pass<1, 0>, pass<1, 1>, pass<1, 2>}, {pass<2, 0>, pass<2, 1>, pass<2, 2>}};
  const auto used = [](const auto& pointers) {
    return (pointers[0] != nullptr ? 1 : 0) + (pointers[1] != nullptr ? 1 : 0);
  };
  return kPasses[used(streams.own)][used(streams.update)](streams);
}

void scatter(const Streams& streams) {
  const std::size_t spread = 2 * streams.lines;  // an entry has the bytes of two elements
  const auto* const entries = reinterpret_cast<const float*>(streams.peer[0]);
  for (std::size_t i = 0; spread * i < streams.count; ++i) streams.update[0][spread * i] += entries[2 * i + 1];
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
    terngrad_unit<kBits>(streams.own[0] + begin, key, streams.payload + begin * kBits / 8);
  }
}

void terngrad(const Streams& streams) {
  if (streams.lines == 16) terngrad_units<2>(streams);
  if (streams.lines == 8) terngrad_units<4>(streams);
  if (streams.lines == 4) terngrad_units<8>(streams);
}

}  // namespace

const Bare kBare{move, terngrad, scatter};

}  // namespace casync::bench::CASYNC_KERNEL_ISA
