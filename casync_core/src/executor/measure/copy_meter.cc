#include "executor/measure/copy_meter.hpp"

#include <utility>

namespace casync {

void CopyMeter::count(Nanoseconds now) {
  if (calls_ > 0 && under_way_ > 0) {
    period_.time += now - since_;
    total_ += now - since_;
  }
  since_ = now;
}

void CopyMeter::enter(Nanoseconds now) {
  count(now);
  ++calls_;
}

void CopyMeter::leave(Nanoseconds now) {
  count(now);
  --calls_;
}

void CopyMeter::begin(Nanoseconds now) {
  count(now);
  if (under_way_++ == 0) period_ = {};
}

std::optional<LinkMeter::Period> CopyMeter::end(std::size_t bytes, Nanoseconds now) {
  count(now);
  period_.bytes += bytes;
  --under_way_;
  if (under_way_ > 0 && period_.bytes < LinkMeter::kEnough) return std::nullopt;
  const LinkMeter::Period period = std::exchange(period_, {});
  if (period.bytes < LinkMeter::kLeast || period.time <= 0) return std::nullopt;
  return period;
}

}  // namespace casync
