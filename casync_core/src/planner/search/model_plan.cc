#include "planner/search/model_plan.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "casync/codec.hpp"
#include "planner/cost/payload_sizes.hpp"
#include "planner/search/candidates.hpp"
#include "planner/search/step_model.hpp"

namespace casync {
namespace {

constexpr double kNoticed = 1e-4;  // of the step: less is none

double raw_bytes_of(const Signature& signature) {
  return static_cast<double>(signature.shape.numel()) * static_cast<double>(size_of(signature.dtype));
}

struct Candidate {
  Alternative way;
  std::shared_ptr<const Codec> codec;
  StepItem item;
  double loss = 0;   // how much it changes training
  bool few = false;  // with as few partitions as may be, where more suit it best
};

bool same_way(const Alternative& a, const Alternative& b) {
  return a.codec == b.codec && a.topology == b.topology && a.partitions == b.partitions;
}

struct Gradient {
  std::vector<Candidate> candidates;  // first what the rules say, the fastest alone before the others
  std::size_t by_rules = 0;           // how many of them
  double raw = 0;

  /// The rules' way with a codec.
  std::optional<std::size_t> with(const std::string& codec) const {
    for (std::size_t c = 0; c < by_rules; ++c) {
      if (candidates[c].way.codec == codec) return c;
    }
    return std::nullopt;
  }
};

/// Per open gradient, which candidate.
using Choice = std::vector<std::size_t>;

/// How good a choice is.
struct Score {
  double seconds = std::numeric_limits<double>::infinity();
  double loss = 0;

  /// Whether it is shorter by `share`, or not longer and with less loss.
  bool better_than(const Score& other, double share) const {
    if (seconds < other.seconds * (1 - share)) return true;
    return seconds <= other.seconds && loss < other.loss;
  }
};

class Search {
 public:
  explicit Search(const ModelRequest& request) : request_(request), costs_(request.costs) {
    costs_.gradients.clear();
    const std::vector<double>& ready = ready_ = ready_times();
    for (const OpenGradient& gradient : request.open) add(gradient, ready[gradients_.size()]);
    std::size_t at = request.open.size();
    for (const SettledGradient& gradient : request.settled) {
      settled_.push_back(candidate(gradient.name, gradient.signature, way_of(gradient.plan), ready[at]));
      ++at;
    }
    sort_by_time(ready);
    by_size_.resize(gradients_.size());
    std::iota(by_size_.begin(), by_size_.end(), 0);
    std::ranges::stable_sort(by_size_, std::greater(), [&](std::size_t g) { return gradients_[g].raw; });
  }

  ModelPlan run() {
    ModelPlan plan;
    std::vector<std::pair<Choice, Score>> starts;
    const auto start_with = [&](Choice choice) {
      const Score of_choice = score(choice);
      starts.emplace_back(std::move(choice), of_choice);
      return of_choice.seconds;
    };
    plan.alone_s = start_with(Choice(gradients_.size(), 0));
    for (const std::string& codec : codecs_) {
      Choice uniform(gradients_.size(), 0);
      for (std::size_t g = 0; g < uniform.size(); ++g) uniform[g] = gradients_[g].with(codec).value_or(0);
      plan.uniform.emplace_back(codec, predicted(uniform));
      start_with(std::move(uniform));
    }
    std::ranges::stable_sort(starts, [](const auto& a, const auto& b) { return a.second.better_than(b.second, 0); });
    auto [best, least] = starts.front();
    for (auto& [choice, of_choice] : starts) {
      improve(choice, of_choice);
      if (!of_choice.better_than(least, 0)) continue;
      best = std::move(choice);
      least = of_choice;
    }
    for (std::size_t g = 0; g < best.size(); ++g) plan.ways.push_back(gradients_[g].candidates[best[g]].way);
    static_cast<PredictedStep&>(plan) = predicted(best);
    plan.bookings = bookings_;
    return plan;
  }

 private:
  static Alternative way_of(const GradientPlan& plan) { return {plan.codec, plan.topology, plan.partitions, 0}; }

  /// Of the open gradients, and then of the settled ones.
  std::vector<double> ready_times() const {
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

  Candidate candidate(std::string_view name, const Signature& signature, const Alternative& way, double ready_s) const {
    Candidate made{way, make_codec(way.codec), {}};
    const double raw = raw_bytes_of(signature);
    const CodecInfo& info = made.codec->info();
    const bool sends_raw = request_.world.costs(way.topology, info, 1).sends_raw(info);
    const auto [cost, copies_s] = compute_cost(request_.costs, info.spec, signature.memory, sends_raw, raw);
    made.item = {.ready_s = ready_s + copies_s,
                 .raw = raw,
                 .payload = expected_payload(request_.costs, name, signature, *made.codec),
                 .topology = way.topology,
                 .partitions = way.partitions,
                 .codec = &info,
                 .cost = cost};
    made.loss = loss_of(way.codec) * raw;
    return made;
  }

  void add(const OpenGradient& of, double ready_s) {
    const PlanRequest request{of.name,          of.signature,     request_.world, request_.costs,
                              request_.options, request_.lasting, of.step};
    Gradient& gradient = gradients_.emplace_back();
    gradient.raw = raw_bytes_of(of.signature);
    const Decision decision = plan_gradient(request);
    for (const Alternative& way : decision.alternatives)
      gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
    gradient.by_rules = gradient.candidates.size();
    for (const Candidate& one : gradient.candidates) {
      if (std::ranges::find(codecs_, one.way.codec) == codecs_.end()) codecs_.push_back(one.way.codec);
    }
    if (request_.world.members() > kAllRoutesUpTo) return;
    std::string before;
    for (const Alternative& way : ways_of(request)) {
      const std::string carried = way.codec + " by " + way.topology;
      const bool few = carried == std::exchange(before, carried);
      const auto is_it = [&](const Candidate& one) { return same_way(one.way, way); };
      if (std::ranges::any_of(gradient.candidates, is_it)) continue;
      gradient.candidates.push_back(candidate(of.name, of.signature, way, ready_s));
      gradient.candidates.back().few = few;
    }
  }

  void sort_by_time(const std::vector<double>& ready) {
    in_time_.resize(ready.size());
    std::iota(in_time_.begin(), in_time_.end(), 0);
    std::ranges::stable_sort(in_time_, {}, [&](std::size_t g) { return ready[g]; });
  }

  const Candidate& of(const Choice& choice, std::size_t g) const {
    return g < gradients_.size() ? gradients_[g].candidates[choice[g]] : settled_[g - gradients_.size()];
  }

  PredictedStep predicted(const Choice& choice) const {
    StepModel timeline(costs_, request_.world);
    PredictedStep step{0, std::vector<double>(gradients_.size())};
    for (const std::size_t g : in_time_) {
      const double end = timeline.add(of(choice, g).item);
      if (g < gradients_.size()) step.gradient_s[g] = end - ready_[g];
    }
    step.step_s = timeline.finish();
    return step;
  }

  Score score(const Choice& choice, double limit = std::numeric_limits<double>::infinity()) {
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

  /// Changes `choice` while there is something to gain.
  void improve(Choice& choice, Score& least) {
    if (gradients_.empty() || bookings_ > kSearchBookings) return;
    const double before = least.seconds;
    for (std::size_t blocks = 1;; blocks = std::min(2 * blocks, by_size_.size())) {
      for (std::size_t b = 0; b < blocks; ++b) {
        const std::span<const std::size_t> block(by_size_.data() + b * by_size_.size() / blocks,
                                                 by_size_.data() + (b + 1) * by_size_.size() / blocks);
        for (const std::string& codec : codecs_) {
          try_change(choice, least, block, kNoticed, [&](std::size_t g) { return gradients_[g].with(codec); });
          if (bookings_ > kSearchBookings) return;
        }
        change_beyond_rules(choice, least, block);
        if (bookings_ > kSearchBookings) return;
      }
      if (blocks >= by_size_.size()) break;
    }
    if (least.seconds >= before * (1 - kNoticed)) change_pairs(choice, least);
    if (least.seconds < before * (1 - kNoticed)) improve(choice, least);
  }

  /// Gives two gradients other codecs at a time: what one of them gains the other may have to pay for.
  void change_pairs(Choice& choice, Score& least) {
    for (std::size_t second = 1; second < by_size_.size(); ++second) {
      for (std::size_t first = 0; first < second; ++first) {
        const std::array pair{by_size_[first], by_size_[second]};
        for (std::size_t codecs = 0; codecs < codecs_.size() * codecs_.size(); ++codecs) {
          const std::array wanted{codecs / codecs_.size(), codecs % codecs_.size()};
          try_change(choice, least, pair, kNoticed,
                     [&](std::size_t g) { return gradients_[g].with(codecs_[wanted[g == pair[0] ? 0 : 1]]); });
          if (bookings_ > kSearchBookings) return;
        }
      }
    }
  }

  /// Tries routes and partitions that the rules would not choose: those of the block's first gradient, for all of it.
  void change_beyond_rules(Choice& choice, Score& least, std::span<const std::size_t> block) {
    const Gradient& first = gradients_[block.front()];
    for (std::size_t c = first.by_rules; c < first.candidates.size(); ++c) {
      const Candidate& model = first.candidates[c];
      if (model.way.codec != first.candidates[choice[block.front()]].way.codec) continue;
      try_change(choice, least, block, kWorthwhile,
                 [&](std::size_t g) { return like(gradients_[g], choice[g], model); });
      if (bookings_ > kSearchBookings) return;
    }
  }

  /// What candidate `c` of another gradient is for one that has candidate `now`: it keeps its codec.
  static std::optional<std::size_t> like(const Gradient& gradient, std::size_t now, const Candidate& model) {
    for (std::size_t c = 0; c < gradient.candidates.size(); ++c) {
      const Candidate& one = gradient.candidates[c];
      const bool same_codec = one.way.codec == gradient.candidates[now].way.codec;
      if (same_codec && one.way.topology == model.way.topology && one.few == model.few) return c;
    }
    return std::nullopt;
  }

  template <typename Change>
  void try_change(Choice& choice, Score& least, std::span<const std::size_t> block, double share,
                  const Change& change) {
    Choice changed = choice;
    for (const std::size_t g : block) changed[g] = change(g).value_or(choice[g]);
    if (changed == choice) return;
    const Score of_changed = score(changed, least.seconds);
    if (!of_changed.better_than(least, share)) return;
    choice = std::move(changed);
    least = of_changed;
  }

  const ModelRequest& request_;
  std::vector<double> ready_;        // of the open gradients, and then of the settled ones
  CostTable costs_;                  // of links and codecs: all that the timeline needs, and copies
  std::vector<Gradient> gradients_;  // the open ones
  std::vector<Candidate> settled_;
  std::vector<std::string> codecs_;
  std::vector<std::size_t> in_time_;  // open and settled gradients
  std::vector<std::size_t> by_size_;  // open gradients
  std::size_t bookings_ = 0;
};

}  // namespace

int loss_of(const std::string& spec) {
  const CodecInfo info = make_codec(spec)->info();
  return info.identity ? 0 : info.cast ? 1 : 2;
}

ModelPlan plan_model(const ModelRequest& request) { return Search(request).run(); }

}  // namespace casync
