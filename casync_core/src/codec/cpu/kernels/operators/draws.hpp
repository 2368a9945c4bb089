#pragma once

#include "codec/cpu/kernels/lanes.hpp"
#include "codec/cpu/kernels/philox.hpp"

/// Draws where a pass does not go by 128 coordinates; philox.hpp says which draw is whose.
namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

/// Those of the coordinates i ... i + 15, where i is a multiple of 16.
CASYNC_INLINE I32x16 draw_sixteen(const RandomKey& key, std::uint64_t coordinate) {
  U32x16 words[4];
  draw(key, coordinate / 128 * 128, words);
  return draws_at(words, static_cast<int>(coordinate / 16 % 8));
}

/// That of one coordinate.
inline std::int32_t draw_one(const RandomKey& key, std::uint64_t coordinate) {
  const std::uint64_t counter = coordinate / 128 * 16 + coordinate % 16;
  std::uint32_t c[4]{static_cast<std::uint32_t>(counter), key.sequence,
                     key.round | static_cast<std::uint32_t>(counter >> 32) << 8, key.stream};
  auto key0 = static_cast<std::uint32_t>(key.name_hash);
  auto key1 = static_cast<std::uint32_t>(key.name_hash >> 32);
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t product0 = std::uint64_t{c[0]} * 0xD2511F53U;
    const std::uint64_t product1 = std::uint64_t{c[2]} * 0xCD9E8D57U;
    c[0] = static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<std::uint32_t>(product1);
    c[2] = static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  const std::uint64_t sixteenth = coordinate / 16 % 8;
  return static_cast<std::int32_t>(c[sixteenth / 2] >> (16 * (sixteenth % 2)) & 0xffffU);
}

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
