#pragma once

#include <cstddef>
#include <optional>

#include "casync/types.hpp"

namespace casync {

/// Measures a link at its receiving end: the bytes that came in while at least one body was under way, and how long
/// that was. Where several bodies share the link, each alone would see a slower one. At the sending end a body is done
/// when the system has copied it, which says little about the link; and a body that the receiver has not accepted yet
/// waits for the receiver, not for the link.
class LinkMeter {
 public:
  static constexpr std::size_t kLeast = 64 << 10;  ///< shorter periods are mostly latency
  static constexpr std::size_t kEnough = 1 << 20;  ///< a long period is cut into such pieces

  struct Period {
    std::size_t bytes = 0;
    Nanoseconds time = 0;
  };

  /// A body was accepted.
  void begin(Nanoseconds now);
  /// A body of `bytes` is complete. Returns a period that has ended.
  std::optional<Period> end(std::size_t bytes, Nanoseconds now);

 private:
  std::size_t under_way_ = 0;
  std::size_t bytes_ = 0;
  Nanoseconds since_ = 0;
};

}  // namespace casync
