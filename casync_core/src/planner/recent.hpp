#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

namespace casync {

/// The last `most` of the numbers that were added.
template <std::size_t most>
class Recent {
 public:
  void add(double value) {
    values_[count_ % most] = value;
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return std::min(count_, most); }
  /// Of these two there is at least one number.
  double mean() const {
    const auto end = values_.begin() + static_cast<std::ptrdiff_t>(size());
    return std::accumulate(values_.begin(), end, 0.0) / static_cast<double>(size());
  }
  /// Of an even number of them the larger one in the middle.
  double median() const {
    std::array<double, most> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(size()));
    return *middle;
  }

 private:
  std::array<double, most> values_{};
  std::size_t count_ = 0;
};

}  // namespace casync
