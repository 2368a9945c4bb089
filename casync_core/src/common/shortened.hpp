#pragma once

#include <cstddef>
#include <string>

namespace casync {

/// The most of a text that goes to other ranks: a traceback of a large model may have megabytes.
inline constexpr std::size_t kTextBytes = 4096;

/// `text`, or its begin, with a note of how much is missing. It is cut between two characters of UTF-8.
inline std::string shortened(std::string text, std::size_t most = kTextBytes) {
  if (text.size() <= most) return text;
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  const std::size_t left = text.size() - end;
  text.resize(end);
  return text + " ... (" + std::to_string(left) + " more bytes)";
}

}  // namespace casync
