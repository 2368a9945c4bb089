#pragma once

#include <algorithm>
#include <cstdint>

#include "casync/types.hpp"

namespace casync::codec {

/// How `onebit` groups a gradient (ALGORITHMS: onebit): rows of `shape.cols` elements are the groups; a row longer than
/// 4096 is cut into pieces of equal size, the last one shorter; rows shorter than 256 are joined until a group has at
/// least 256. So all groups have `group` elements but the last of each `period` (a long row, or a single group); the
/// gradient's end ends a group. The group of an element and its payload's place follow by division, whatever the
/// partition.
class GroupLayout {
 public:
  static constexpr std::int64_t kLongest = 4096;
  static constexpr std::int64_t kShortest = 256;

  explicit GroupLayout(const Shape& shape) : numel_(shape.numel()) {
    const std::int64_t cols = std::max<std::int64_t>(shape.cols, 1);
    if (cols > kLongest) {
      const std::int64_t pieces = (cols + kLongest - 1) / kLongest;
      group_ = (cols + pieces - 1) / pieces;
      period_ = cols;
    } else {
      const std::int64_t rows = cols >= kShortest ? 1 : (kShortest + cols - 1) / cols;
      group_ = period_ = rows * cols;
    }
  }

  std::int64_t longest() const { return group_; }

  /// Whether all groups but the gradient's last are multiples of `elements`.
  bool multiples_of(std::int64_t elements) const { return group_ % elements == 0 && period_ % elements == 0; }

  /// Largest group boundary <= element.
  std::int64_t floor(std::int64_t element) const {
    if (element >= numel_) return numel_;
    const std::int64_t in_period = element % period_;
    return element - in_period % group_;
  }

  /// End of the group that begins at the boundary `begin` < numel.
  std::int64_t end_of(std::int64_t begin) const {
    const std::int64_t period_end = begin - begin % period_ + period_;
    return std::min({begin + group_, period_end, numel_});
  }

  /// Payload bytes of a group of `elements`: two means, then the bits, from a byte boundary on.
  static std::int64_t bytes_of(std::int64_t elements) { return 8 + (elements + 7) / 8; }

  /// Payload bytes of all groups before the boundary `element`.
  std::int64_t bytes_before(std::int64_t element) const {
    const std::int64_t in_period = element % period_;
    return element / period_ * bytes_of_part(period_) + bytes_of_part(in_period);
  }

 private:
  /// Of the first `elements` of a period, which end on a boundary.
  std::int64_t bytes_of_part(std::int64_t elements) const {
    const std::int64_t rest = elements % group_;
    return elements / group_ * bytes_of(group_) + (rest > 0 ? bytes_of(rest) : 0);
  }

  std::int64_t numel_;
  std::int64_t group_ = 1;
  std::int64_t period_ = 1;
};

}  // namespace casync::codec
