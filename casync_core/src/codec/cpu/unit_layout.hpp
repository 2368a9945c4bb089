#pragma once

#include <algorithm>
#include <cstdint>

#include "casync/types.hpp"

namespace casync::codec {

/// What a CompLL file says of its unit (docs/compll.md, `unit`).
struct UnitRule {
  std::int64_t shortest = 0;  ///< rows shorter than this are joined; 0: units are of `longest`, whatever the shape
  std::int64_t longest = 0;   ///< rows longer than this are cut into pieces of equal size
};

/// The units of a gradient, and where their payloads lie. All units have `unit` elements but the last of each `period`
/// (a long row, or a single unit); the gradient's end ends a unit. The unit of an element and its payload's place
/// follow by division, whatever the partition.
class UnitLayout {
 public:
  /// A unit's payload has `header` bytes and then `bits` bits for each element, from a byte boundary on.
  UnitLayout(const UnitRule& rule, std::int64_t header, int bits, const Shape& shape)
      : numel_(shape.numel()), header_(header), bits_(bits) {
    const std::int64_t cols = std::max<std::int64_t>(shape.cols, 1);
    if (rule.shortest == 0) {
      unit_ = period_ = rule.longest;
    } else if (cols > rule.longest) {
      const std::int64_t pieces = (cols + rule.longest - 1) / rule.longest;
      unit_ = (cols + pieces - 1) / pieces;
      period_ = cols;
    } else {
      const std::int64_t rows = cols >= rule.shortest ? 1 : (rule.shortest + cols - 1) / cols;
      unit_ = period_ = rows * cols;
    }
  }

  /// Whether all units but the gradient's last are multiples of `elements`.
  bool multiples_of(std::int64_t elements) const { return unit_ % elements == 0 && period_ % elements == 0; }

  /// Largest unit boundary <= element.
  std::int64_t floor(std::int64_t element) const {
    if (element >= numel_) return numel_;
    const std::int64_t in_period = element % period_;
    return element - in_period % unit_;
  }

  /// End of the unit that begins at the boundary `begin` < numel.
  std::int64_t end_of(std::int64_t begin) const {
    const std::int64_t period_end = begin - begin % period_ + period_;
    return std::min({begin + unit_, period_end, numel_});
  }

  /// Payload bytes of a unit of `elements`.
  std::int64_t bytes_of(std::int64_t elements) const { return header_ + (elements * bits_ + 7) / 8; }

  /// Payload bytes of all units before the boundary `element`.
  std::int64_t bytes_before(std::int64_t element) const {
    const std::int64_t in_period = element % period_;
    return element / period_ * bytes_of_part(period_) + bytes_of_part(in_period);
  }

 private:
  /// Of the first `elements` of a period, which end on a boundary.
  std::int64_t bytes_of_part(std::int64_t elements) const {
    const std::int64_t rest = elements % unit_;
    return elements / unit_ * bytes_of(unit_) + (rest > 0 ? bytes_of(rest) : 0);
  }

  std::int64_t numel_;
  std::int64_t header_;
  std::int64_t bits_;
  std::int64_t unit_ = 1;
  std::int64_t period_ = 1;
};

}  // namespace casync::codec
