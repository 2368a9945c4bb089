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

/// The key of draw `site` of a file: the rank's own, or the same on every rank and in every round.
CASYNC_INLINE RandomKey key_of(RandomKey key, std::uint32_t site, bool shared) {
  key.stream = (shared ? 0xfffffU : key.stream) + (site << 20);
  if (shared) key.round = 0;
  return key;
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

/// Draw `site` for the elements of a pass, which takes them in order: 128 of them are made at a time.
class Draws {
 public:
  Draws(const RandomKey& key, std::uint32_t site, bool shared) : key_(key_of(key, site, shared)) {}

  /// For the unit's elements i ... i + 15.
  CASYNC_INLINE I32x16 at(std::int64_t i) {
    const std::uint64_t coordinate = key_.coordinate + static_cast<std::uint64_t>(i);
    if (__builtin_expect(coordinate % 16 != 0, 0)) return across(coordinate);
    if (coordinate / 128 != block_) {
      block_ = coordinate / 128;
      draw(key_, 128 * block_, words_);
    }
    return draws_at(words_, static_cast<int>(coordinate / 16 % 8));
  }

 private:
  [[gnu::noinline]] I32x16 across(std::uint64_t coordinate) const {
    std::int32_t sixteen[16];
    for (std::uint64_t lane = 0; lane < 16; ++lane) sixteen[lane] = draw_one(key_, coordinate + lane);
    I32x16 out;
    __builtin_memcpy(&out, sixteen, sizeof sixteen);
    return out;
  }

  RandomKey key_;
  std::uint64_t block_ = ~std::uint64_t{0};
  U32x16 words_[4];
};

}  // namespace
}  // namespace casync::codec::CASYNC_KERNEL_ISA
