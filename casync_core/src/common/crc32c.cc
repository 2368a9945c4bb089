#include "common/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace casync {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1U) ^ ((value & 1U) != 0 ? 0x82f63b78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr auto kTable = make_table();

std::uint32_t by_table(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (const std::byte b : bytes) crc = (crc >> 8U) ^ kTable[(crc ^ static_cast<std::uint32_t>(b)) & 0xffU];
  return ~crc;
}

#if defined(__x86_64__)
/// The instruction takes three cycles and one can start in each, so three stretches are summed side by side and joined:
/// the sum of a stretch moves over the kStretch bytes that follow it by a table for each of its four bytes (zeros
/// change a sum linearly).
constexpr std::size_t kStretch = 512;

constexpr std::array<std::array<std::uint32_t, 256>, 4> make_moves() {
  std::array<std::array<std::uint32_t, 256>, 4> moves{};
  for (unsigned bit = 0; bit < 32; ++bit) {
    std::uint32_t crc = 1U << bit;
    for (std::size_t i = 0; i < kStretch; ++i) crc = (crc >> 8U) ^ kTable[crc & 0xffU];
    for (unsigned value = 0; value < 256; ++value) {
      if ((value >> bit % 8 & 1U) != 0) moves[bit / 8][value] ^= crc;
    }
  }
  return moves;
}
constexpr auto kMoves = make_moves();

std::uint32_t moved(std::uint64_t crc) {
  return kMoves[0][crc & 0xffU] ^ kMoves[1][crc >> 8U & 0xffU] ^ kMoves[2][crc >> 16U & 0xffU] ^ kMoves[3][crc >> 24U];
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint64_t crc = ~before;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 3 * kStretch; at += 3 * kStretch, left -= 3 * kStretch) {
    std::uint64_t sums[3]{crc, 0, 0};
    for (std::size_t i = 0; i < kStretch; i += 8) {
      for (std::size_t s = 0; s < 3; ++s) {
        std::uint64_t word = 0;
        std::memcpy(&word, at + s * kStretch + i, 8);
        sums[s] = _mm_crc32_u64(sums[s], word);
      }
    }
    crc = moved(moved(sums[0]) ^ sums[1]) ^ sums[2];
  }
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; ++at, --left) narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(*at));
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return by_instruction(bytes, before);
#endif
  return by_table(bytes, before);
}

}  // namespace casync
