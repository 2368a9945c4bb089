#pragma once

#include <cstdint>
#include <string_view>

namespace casync {

/// FNV-1a, 64 bit: the same on every rank and build, so a hash may travel instead of a text. Another seed gives the
/// text another hash, also in its low bits.
constexpr std::uint64_t hash_text(std::string_view text, std::uint32_t seed = 0) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ seed;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace casync
