#include "planner/search/search_space.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/cost/payload_sizes.hpp"
#include "planner/search/candidates.hpp"
#include "routes/phase_list.hpp"

namespace casync {
namespace {

double raw_bytes_of(const Signature& signature) {
  return static_cast<double>(signature.shape.numel()) * static_cast<double>(size_of(signature.dtype));
}

bool same_way(const Alternative& a, const Alternative& b) {
  return a.codec == b.codec && a.topology == b.topology && a.partitions == b.partitions && a.on_host == b.on_host;
}

Alternative way_of(const GradientPlan& plan) { return {plan.codec, plan.topology, plan.partitions, 0, plan.on_host}; }

}  // namespace

std::optional<std::size_t> SearchedGradient::with(const std::string& codec) const {
  for (std::size_t c = 0; c < by_rules; ++c) {
    if (candidates[c].way.codec == codec) return c;
  }
  return std::nullopt;
}

SearchSpace::SearchSpace(const ModelRequest& request) : request_(request), costs_(request.costs) {
  costs_.gradients.clear();
  ready_ = ready_times();
  for (const OpenGradient& gradient : request.open) add(gradient, ready_[gradients_.size()]);
  std::size_t at = request.open.size();
  for (const SettledGradient& gradient : request.settled) {
    settled_.push_back(candidate(gradient.name, gradient.signature, way_of(gradient.plan), ready_[at]));
    ++at;
  }
  in_time_.resize(ready_.size());
  std::iota(in_time_.begin(), in_time_.end(), 0);
  std::ranges::stable_sort(in_time_, {}, [&](std::size_t g) { return ready_[g]; });
  by_size_.resize(gradients_.size());
  std::iota(by_size_.begin(), by_size_.end(), 0);
  std::ranges::stable_sort(by_size_, std::greater(), [&](std::size_t g) { return gradients_[g].raw; });
}

/// Of the open gradients, and then of the settled ones.
std::vector<double> SearchSpace::ready_times() const {
  std::vector<double> times;
  double before = 0;
  const auto add = [&](const std::string& name) {
    const auto known = request_.costs.gradients.find(name);
    if (known != request_.costs.gradients.end()) before = known->second.ready_s.value_or(before);
    times.push_back(before);
  };
  for (const OpenGradient& gradient : request_.open) add(gradient.name);
  before = 0;
  for (const SettledGradient& gradient : request_.settled) add(gradient.name);
  return times;
}

Candidate SearchSpace::candidate(std::string_view name, const Signature& signature, const Alternative& way,
                                 double ready_s) const {
  Candidate made{way, make_codec(way.codec), {}};
  const double raw = raw_bytes_of(signature);
  const CodecInfo& info = made.codec->info();
  const bool sends_raw = request_.world.costs(way.topology, info, 1).sends_raw(info);
  const MemoryKind memory = signature.memory;
  const bool there = is_computed_there(request_.costs, info.spec, memory, sends_raw) && !way.on_host;
  const double copies_s = memory == MemoryKind::device && !there ? 2 * raw * request_.costs.copy_s_per_byte : 0;
  made.item = {.ready_s = ready_s,
               .raw = raw,
               .payload = expected_payload(request_.costs, name, signature, *made.codec),
               .topology = way.topology,
               .partitions = way.partitions,
               .codec = &info,
               .cost = there ? request_.costs.device_codecs.find(info.spec)->second : request_.costs.of(info.spec),
               .place = memory != MemoryKind::device ? Place::host
                        : there                      ? Place::device
                                                     : Place::offloaded,
               .copies_s = copies_s};
  made.loss = loss_of(way.codec) * raw;
  made.listed = parse_phases(way.topology).has_value();
  return made;
}

void SearchSpace::add(const OpenGradient& of, double ready_s) {
  const PlanRequest request{of.name,          of.signature,     request_.world, request_.costs,
                            request_.options, request_.lasting, of.step};
  SearchedGradient& gradient = gradients_.emplace_back();
  gradient.raw = raw_bytes_of(of.signature);
  const Decision decision = plan_gradient(request);
  for (const Alternative& way : decision.alternatives)
    gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
  gradient.by_rules = gradient.candidates.size();
  for (const Candidate& one : gradient.candidates) {
    if (std::ranges::find(codecs_, one.way.codec) == codecs_.end()) codecs_.push_back(one.way.codec);
  }
  gradient.named = gradient.by_rules;
  if (request_.world.members() > request_.options.all_routes_up_to) return;
  std::string before;
  for (const Alternative& way : ways_of(request)) {
    const std::string carried = way.codec + " by " + way.topology;
    const bool few = carried == std::exchange(before, carried);
    const auto is_it = [&](const Candidate& one) { return same_way(one.way, way); };
    if (std::ranges::any_of(gradient.candidates, is_it)) continue;
    gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
    gradient.candidates.back().few = few;
  }
  gradient.named = gradient.candidates.size();
  for (const Alternative& way : listed_ways_of(request))
    gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
  for (std::size_t c = 0, count = gradient.candidates.size(); c < count; ++c) {
    if (gradient.candidates[c].item.place != Place::device) continue;
    Alternative way = gradient.candidates[c].way;
    way.on_host = true;
    gradient.candidates[c].offloaded = gradient.candidates.size();
    gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
  }
  for (Candidate& one : gradient.candidates) {
    StepItem item = one.item;
    item.ready_s = 0;
    StepModel alone(costs_, request_.world);
    alone.add(item);
    one.needs = alone.needs();
    bookings_ += alone.bookings();
  }
}

PredictedStep SearchSpace::predicted(const Choice& choice) const {
  StepModel timeline(costs_, request_.world);
  PredictedStep step{0, std::vector<double>(gradients_.size())};
  for (const std::size_t g : in_time_) {
    const double end = timeline.add(of(choice, g).item);
    if (g < gradients_.size()) step.gradient_s[g] = end - ready_[g];
  }
  step.step_s = timeline.finish();
  return step;
}

Score SearchSpace::score(const Choice& choice, double limit) {
  StepModel timeline(costs_, request_.world);
  Score score;
  for (const std::size_t g : in_time_) {
    timeline.add(of(choice, g).item);
    if (g < gradients_.size()) score.loss += of(choice, g).loss;
    if (timeline.finish() > limit) break;  // it gets no shorter
  }
  bookings_ += timeline.bookings();
  score.seconds = timeline.finish();
  return score;
}

std::vector<double> SearchSpace::ends(const Choice& choice) {
  StepModel timeline(costs_, request_.world);
  std::vector<double> ends;
  for (const std::size_t g : in_time_) ends.push_back(timeline.add(of(choice, g).item));
  bookings_ += timeline.bookings();
  return ends;
}

std::vector<Alternative> SearchSpace::ways(const Choice& choice) const {
  std::vector<Alternative> ways;
  for (std::size_t g = 0; g < choice.size(); ++g) ways.push_back(gradients_[g].candidates[choice[g]].way);
  return ways;
}

}  // namespace casync
