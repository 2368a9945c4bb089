#include "planner/cost/links.hpp"

#include <algorithm>

namespace casync {
namespace {

/// What is less than most of the samples: the rest waited for something else.
constexpr double kUndisturbed = 0.25;

std::optional<double> median_of(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional(median(values));
}

/// What one period is told of a body may be in another one: so all of them together.
std::optional<double> rate_of_all(const std::vector<Sample>& samples) {
  double bytes = 0, seconds = 0;
  for (const Sample& sample : samples) {
    bytes += sample.bytes;
    seconds += sample.seconds;
  }
  return bytes > 0 ? std::optional(seconds / bytes) : std::nullopt;
}

std::optional<double> time_per_message(const std::vector<Sample>& messages) {
  const auto [least, most] = std::ranges::minmax_element(messages, {}, &Sample::bytes);
  if (messages.empty() || most->bytes < 2 * least->bytes) return std::nullopt;
  const double seconds = fit_line(messages).fixed_s;
  return seconds > 0 ? std::optional(seconds) : std::nullopt;
}

}  // namespace

std::optional<double> rate_of_largest(const std::vector<Sample>& samples) {
  double largest = 0;
  for (const Sample& sample : samples) largest = std::max(largest, sample.bytes);
  std::vector<double> costs;
  for (const Sample& sample : samples) {
    if (sample.bytes > 0 && sample.bytes * 2 >= largest) costs.push_back(sample.seconds / sample.bytes);
  }
  return costs.empty() ? std::nullopt : std::optional(quantile(std::move(costs), kUndisturbed));
}

MeasuredLink LinkSamples::link() const {
  MeasuredLink link{
      {}, rate_of_largest(bodies_.values()), time_per_message(messages_.values()), rate_of_all(processor_.values())};
  if (!round_trips_.values().empty()) link.latency_s = quantile(round_trips_.values(), kUndisturbed) / 2;
  return link;
}

MeasuredLink reduce(const std::vector<MeasuredLink>& ranks, bool hindered) {
  MeasuredLink reduced;
  std::vector<double> rates;
  std::vector<double> latencies, messages, processor;
  for (const MeasuredLink& rank : ranks) {
    if (rank.seconds_per_byte) rates.push_back(*rank.seconds_per_byte);
    if (rank.latency_s) latencies.push_back(*rank.latency_s);
    if (rank.message_s) messages.push_back(*rank.message_s);
    if (rank.processor_s_per_byte) processor.push_back(*rank.processor_s_per_byte);
  }
  if (!rates.empty()) reduced.seconds_per_byte = hindered ? median(rates) : std::ranges::max(rates);
  reduced.latency_s = median_of(latencies);
  reduced.message_s = median_of(messages);
  reduced.processor_s_per_byte = median_of(processor);
  return reduced;
}

LinkCost measured_over(const MeasuredLink& measured, const LinkCost& prior) {
  return {measured.latency_s.value_or(prior.latency_s), measured.seconds_per_byte.value_or(prior.seconds_per_byte),
          measured.message_s.value_or(prior.message_s),
          measured.processor_s_per_byte.value_or(prior.processor_s_per_byte)};
}

}  // namespace casync
