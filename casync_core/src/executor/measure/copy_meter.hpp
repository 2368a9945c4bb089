#pragma once

#include <cstddef>
#include <optional>

#include "casync/types.hpp"
#include "executor/measure/link_meter.hpp"

namespace casync {

/// Measures what a processor does for bodies, at their receiving end: it copies them while the transport is called, and
/// between two calls does nothing for them, whatever else goes on. So it counts the time within calls of the transport
/// while at least one body is under way. Inside a host that is the link. Between hosts it is what the processor does
/// beside the link, if times are those of the thread that calls. Pure: times are passed in.
class CopyMeter {
 public:
  /// The transport is called, and has returned; calls may be nested.
  void enter(Nanoseconds now);
  void leave(Nanoseconds now);
  /// A body was accepted.
  void begin(Nanoseconds now);
  /// A body of `bytes` is complete. Returns a period that has ended, by the lengths of a LinkMeter.
  std::optional<LinkMeter::Period> end(std::size_t bytes, Nanoseconds now);
  /// All that was counted so far.
  Nanoseconds total() const { return total_; }

 private:
  void count(Nanoseconds now);

  std::size_t calls_ = 0;
  std::size_t under_way_ = 0;
  LinkMeter::Period period_;
  Nanoseconds since_ = 0;
  Nanoseconds total_ = 0;
};

}  // namespace casync
