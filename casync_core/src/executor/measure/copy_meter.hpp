#pragma once

#include <cstddef>
#include <optional>

#include "casync/types.hpp"
#include "executor/measure/link_meter.hpp"

namespace casync {

/// Measures the link between ranks of one host, at its receiving end. There a processor copies the bytes while the
/// transport is called; between two calls nothing moves, whatever else goes on. So it counts the time within calls of
/// the transport while at least one body is under way. Pure: times are passed in.
class CopyMeter {
 public:
  /// The transport is called, and has returned; calls may be nested.
  void enter(Nanoseconds now);
  void leave(Nanoseconds now);
  /// A body was accepted.
  void begin(Nanoseconds now);
  /// A body of `bytes` is complete. Returns a period that has ended, by the lengths of a LinkMeter.
  std::optional<LinkMeter::Period> end(std::size_t bytes, Nanoseconds now);

 private:
  void count(Nanoseconds now);

  std::size_t calls_ = 0;
  std::size_t under_way_ = 0;
  LinkMeter::Period period_;
  Nanoseconds since_ = 0;
};

}  // namespace casync
