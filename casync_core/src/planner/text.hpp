#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace casync {

/// "1.52 ms": three digits, as plans and explanations print times.
inline std::string in_ms(double seconds) {
  std::array<char, 32> text{};
  const double ms = seconds * 1e3;
  std::snprintf(text.data(), text.size(), ms < 1000 ? "%.3g ms" : "%.0f ms", ms);
  return text.data();
}

/// "1.25 MiB", "16 KiB", "512 B".
inline std::string in_bytes(double bytes) {
  std::array<char, 32> text{};
  if (bytes >= 1 << 20) {
    std::snprintf(text.data(), text.size(), "%.4g MiB", bytes / (1 << 20));
  } else if (bytes >= 1 << 10) {
    std::snprintf(text.data(), text.size(), "%.4g KiB", bytes / (1 << 10));
  } else {
    std::snprintf(text.data(), text.size(), "%.0f B", bytes);
  }
  return text.data();
}

}  // namespace casync
