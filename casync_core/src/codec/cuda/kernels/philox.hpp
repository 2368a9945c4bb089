#pragma once

#include "codec/cuda/kernels/lanes.hpp"
#include "codec/unit.hpp"

/// Philox4x32-7, one coordinate at a time; codec/cpu/kernels/philox.hpp says which draw is whose.
namespace casync::codec::cuda {

/// The 16 bits of one coordinate.
CASYNC_DEVICE std::int32_t draw_one(const RandomKey& key, std::uint64_t coordinate) {
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
  const std::uint64_t word = sixteenth / 2;
  const std::uint32_t chosen = word < 2 ? (word == 0 ? c[0] : c[1]) : (word == 2 ? c[2] : c[3]);
  return static_cast<std::int32_t>(chosen >> (16 * (sixteenth % 2)) & 0xffffU);
}

/// Draw `site` of the file for element i of the unit.
CASYNC_DEVICE std::int32_t draw_at(RandomKey key, std::uint32_t site, std::int64_t i) {
  key.stream += site << 20;
  return draw_one(key, key.coordinate + static_cast<std::uint64_t>(i));
}
/// The same as a number below `limit`, for the unit's first element.
CASYNC_DEVICE std::int32_t draw_below(const RandomKey& key, std::uint32_t site, std::int32_t limit) {
  return static_cast<std::int32_t>((std::int64_t{limit} * draw_at(key, site, 0)) >> 16);
}
/// The same key on every rank, in every round.
CASYNC_DEVICE RandomKey shared_key(RandomKey key, std::uint32_t site) {
  key.stream = 0xfffffU + (site << 20);
  key.round = 0;
  return key;
}
/// Draw `site` for element i of the unit, the same on every rank.
CASYNC_DEVICE std::int32_t shared_draw_at(const RandomKey& key, std::uint32_t site, std::int64_t i) {
  return draw_one(shared_key(key, site), key.coordinate + static_cast<std::uint64_t>(i));
}
/// Draw `site` in (0, 1), the same on every rank.
CASYNC_DEVICE float shared_draw(const RandomKey& key, std::uint32_t site, std::uint64_t coordinate) {
  return (static_cast<float>(draw_one(shared_key(key, site), coordinate)) + 0.5F) / 65536.0F;
}

}  // namespace casync::codec::cuda
