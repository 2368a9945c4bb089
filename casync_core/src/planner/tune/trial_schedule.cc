#include "planner/tune/trial_schedule.hpp"

#include <algorithm>
#include <limits>

#include "casync/error.hpp"
#include "planner/text.hpp"

namespace casync {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// What delays a step makes it longer, never shorter: so one good step is enough not to be given up.
double fastest_step(const std::vector<double>& values) {
  return values.empty() ? std::numeric_limits<double>::infinity() : *std::ranges::min_element(values);
}

}  // namespace

TrialSchedule::TrialSchedule(std::vector<std::string> ways, std::size_t first) : first_(first), current_(first) {
  for (std::string& name : ways) ways_.push_back({std::move(name)});
  CASYNC_CHECK(first < ways_.size());
  for (std::size_t way = ways_.size(); way-- > 0;) {
    if (way != first) waiting_.push_back(way);
  }
  over_ = ways_.size() == 1;
}

double TrialSchedule::least() const {
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : ways_) least = std::min(least, fastest_step(way.seconds));
  return least;
}

bool TrialSchedule::ended(std::optional<double> seconds) {
  if (over_) return false;
  ++steps_;
  ++in_window_;
  bool changed = false;
  if (in_window_ > kSettling && seconds) {
    const bool far = turns_ == 0 && *seconds > kFar * least();
    ways_[current_].seconds.push_back(*seconds);
    if (++counted_ == kCounted || far) changed = next();
  }
  if (!over_ && steps_ == kMostSteps) {
    decide();
    changed = true;
  }
  return changed;
}

bool TrialSchedule::next() {
  in_window_ = counted_ = 0;
  const std::size_t before = current_;
  if (waiting_.empty()) {
    for (std::size_t way = ways_.size(); way-- > 0;) {
      ways_[way].out = ways_[way].out || fastest_step(ways_[way].seconds) > kBehind * least();
      if (!ways_[way].out) waiting_.push_back(way);
    }
    if (++turns_ == kTurns || waiting_.size() == 1) {
      decide();
      return true;
    }
  }
  current_ = waiting_.back();
  waiting_.pop_back();
  return current_ != before;
}

void TrialSchedule::decide() {
  over_ = true;
  const bool all_known = std::ranges::none_of(ways_, [](const Way& way) { return way.seconds.empty(); });
  current_ = first_;
  if (!all_known) return;
  double least = std::numeric_limits<double>::infinity();
  for (const Way& way : ways_) least = std::min(least, way.out ? least : median(way.seconds));
  const auto fast = [&](const Way& way) { return !way.out && median(way.seconds) <= kClose * least; };
  current_ = static_cast<std::size_t>(std::ranges::find_if(ways_, fast) - ways_.begin());
}

std::string TrialSchedule::verdict() const {
  std::string text;
  for (const Way& way : ways_) {
    text += detail::concat(text.empty() ? "" : ", ", way.name, " ");
    text += way.seconds.empty()
                ? "not timed"
                : in_ms(median(way.seconds)) + (text.find(" a step") == std::string::npos ? " a step" : "");
  }
  if (!over_) return text;
  return detail::concat(text, ": ", ways_[current_].name, " stays");
}

}  // namespace casync
