#include "executor/measure/link_meter.hpp"

namespace casync {

void LinkMeter::begin(Nanoseconds now) {
  if (under_way_++ > 0) return;
  since_ = now;
  bytes_ = 0;
}

std::optional<LinkMeter::Period> LinkMeter::end(std::size_t bytes, Nanoseconds now) {
  bytes_ += bytes;
  --under_way_;
  if (under_way_ > 0 && bytes_ < kEnough) return std::nullopt;
  const Period period{bytes_, now - since_};
  since_ = now;
  bytes_ = 0;
  if (period.bytes < kLeast || period.time <= 0) return std::nullopt;
  return period;
}

}  // namespace casync
