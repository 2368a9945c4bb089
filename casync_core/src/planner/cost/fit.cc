#include <algorithm>

#include "casync/planner.hpp"

namespace casync {
namespace {

double median(std::vector<double>& values) {
  const std::size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return *at;
  return (*at + *std::max_element(values.begin(), at)) / 2;
}

}  // namespace

Line fit_line(std::span<const Sample> samples) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t j = i + 1; j < samples.size(); ++j) {
      const double bytes = samples[j].bytes - samples[i].bytes;
      if (bytes != 0) slopes.push_back((samples[j].seconds - samples[i].seconds) / bytes);
    }
  }
  std::vector<double> left;
  if (slopes.empty()) {
    for (const Sample& sample : samples) {
      if (sample.bytes > 0) left.push_back(sample.seconds / sample.bytes);
    }
    return {0, left.empty() ? 0 : std::max(0.0, median(left))};
  }
  Line line;
  line.s_per_byte = std::max(0.0, median(slopes));
  for (const Sample& sample : samples) left.push_back(sample.seconds - line.s_per_byte * sample.bytes);
  line.fixed_s = std::max(0.0, median(left));
  return line;
}

}  // namespace casync
