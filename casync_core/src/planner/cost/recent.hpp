#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace casync {

/// The last `most` of what was added, in no order.
template <typename T, std::size_t most>
class Recent {
 public:
  void add(const T& value) {
    if (values_.size() < most) {
      values_.push_back(value);
    } else {
      values_[next_++ % most] = value;
    }
  }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
  std::size_t next_ = 0;
};

// Of these `values` is not empty.

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// The value below which `share` of them are, 0 <= share < 1.
inline double quantile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

/// Of an even number the larger one in the middle.
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace casync
