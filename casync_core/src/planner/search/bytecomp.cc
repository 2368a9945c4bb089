// ByteComp (section 4.3), on F(S) as it is here (step_model.hpp).
//
// Algorithm 1 decides the option of each gradient, large ones before small ones, and of one size those that backward
// makes last first: each gets the option with which the step is shortest, given what the others have by then. Behind
// each decision the gradients that cannot matter any more are left out: all that is ready before the last bubble of
// communication, and uncompressed, is through by then whatever comes later.
//
// Algorithm 2 then decides how many gradients of each group, of one size and one option, are computed on the host
// instead of the device. The paper takes those that backward makes first (lemma 1). That does not hold in general: it
// may move a transfer out of a gap that was free. So gradients of a group are swapped afterwards while that helps.
//
// Both make one pass, and look at no gradient twice. Where few large gradients share a link that may end far from the
// best choice, so changes follow of any gradient, and of any two, to any option, until none helps or too much was
// tried. Nothing here is proved to be the best; bound_of() says how far from it a choice can be at most.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "planner/search/search_space.hpp"

namespace casync {
namespace {

/// Choices of algorithm 2 that are all tried; where there are more, one group is changed after the other.
constexpr std::size_t kAllCounts = 512;

class Options {
 public:
  Options(SearchSpace& space, Choice& choice, Score& least, std::size_t limit)
      : space_(space), choice_(choice), least_(least), limit_(limit) {
    distance_.resize(space.size());
    for (std::size_t at = 0; at < space.in_time().size(); ++at) {
      const std::size_t g = space.in_time()[at];
      if (g < space.size()) distance_[g] = space.in_time().size() - at;
    }
    order_ = space.by_size();
    std::ranges::stable_sort(order_, [&](std::size_t a, std::size_t b) {
      return std::tuple(-space_.gradient(a).raw, distance_[a]) < std::tuple(-space_.gradient(b).raw, distance_[b]);
    });
    for (std::size_t g = 0; g < space.size(); ++g) options_.push_back(not_dominated(space.gradient(g)));
  }

  void run() {
    compress();
    offload();
    repair();
  }

 private:
  bool is_spent() const { return space_.bookings() > limit_; }

  bool try_choice(Choice changed) {
    if (changed == choice_) return false;
    const Score of_changed = space_.score(changed, least_.seconds);
    if (!of_changed.better_than(least_, kNoticed)) return false;
    choice_ = std::move(changed);
    least_ = of_changed;
    return true;
  }

  bool try_option(std::size_t g, std::size_t option) {
    Choice changed = choice_;
    changed[g] = option;
    return try_choice(std::move(changed));
  }

  /// An option that needs no less of anything than another one, and changes training no less, is of no use.
  static std::vector<std::size_t> not_dominated(const SearchedGradient& gradient) {
    const auto worse = [&](std::size_t a, std::size_t b) {
      const Candidate& one = gradient.candidates[a];
      const Candidate& other = gradient.candidates[b];
      const auto all = [](const Candidate& of) {
        const StepModel::Needs& needs = of.needs;
        return std::array{needs.processor, needs.device, needs.copies, needs.nic, needs.inside, needs.finish, of.loss};
      };
      const auto mine = all(one), others = all(other);
      bool equal = true;
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (mine[i] < others[i]) return false;
        equal &= mine[i] == others[i];
      }
      return !equal || b < a;
    };
    std::vector<std::size_t> options;
    for (std::size_t c = 0; c < gradient.candidates.size(); ++c) {
      const auto is_worse = [&](std::size_t other) { return other != c && worse(c, other); };
      std::vector<std::size_t> others(gradient.candidates.size());
      std::iota(others.begin(), others.end(), 0);
      if (std::ranges::none_of(others, is_worse)) options.push_back(c);
    }
    return options;
  }

  /// The place in in_time() of the last gradient that is ready when all before it are synchronised.
  std::size_t last_bubble() {
    const std::vector<double> ends = space_.ends(choice_);
    std::size_t last = 0;
    double over = 0;
    for (std::size_t at = 0; at < ends.size(); ++at) {
      const std::size_t g = space_.in_time()[at];
      if (g < space_.size() && space_.ready_s(g) >= over) last = at;
      over = std::max(over, ends[at]);
    }
    return last;
  }

  bool is_compressed(std::size_t g) const { return !space_.gradient(g).candidates[choice_[g]].codec->info().identity; }

  /// Algorithm 1.
  void compress() {
    std::vector<bool> removed(space_.size(), false);
    for (const std::size_t g : order_) {
      if (is_spent()) return;
      if (removed[g]) continue;
      for (const std::size_t option : options_[g]) try_option(g, option);
      const std::size_t bubble = last_bubble();
      for (std::size_t at = 0; at < bubble; ++at) {
        const std::size_t before = space_.in_time()[at];
        if (before < space_.size() && !is_compressed(before)) removed[before] = true;
      }
    }
  }

  /// Gradients of one size and one option that a device computes, those that backward makes first before the others.
  std::vector<std::vector<std::size_t>> groups() const {
    std::map<std::tuple<double, std::string, std::string, std::uint32_t>, std::vector<std::size_t>> groups;
    for (const std::size_t g : space_.in_time()) {
      if (g >= space_.size()) continue;
      const Candidate& option = space_.gradient(g).candidates[choice_[g]];
      if (!option.offloaded) continue;
      groups[{-space_.gradient(g).raw, option.way.codec, option.way.topology, option.way.partitions}].push_back(g);
    }
    std::vector<std::vector<std::size_t>> listed;
    for (auto& [what, members] : groups) listed.push_back(std::move(members));
    return listed;
  }

  /// The choice with so many gradients of each group on the host.
  Choice with(const Choice& on_device, const std::vector<std::vector<std::size_t>>& groups,
              const std::vector<std::size_t>& counts) const {
    Choice changed = on_device;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (std::size_t m = 0; m < counts[i]; ++m) {
        const std::size_t g = groups[i][m];
        changed[g] = *space_.gradient(g).candidates[on_device[g]].offloaded;
      }
    }
    return changed;
  }

  /// Algorithm 2.
  void offload() {
    const auto of_one = groups();
    const Choice on_device = choice_;
    std::size_t choices = 1;
    for (const auto& group : of_one) choices = std::min(choices * (group.size() + 1), kAllCounts + 1);
    std::vector<std::size_t> counts(of_one.size(), 0);
    if (choices <= kAllCounts) {
      for (std::size_t number = 1; number < choices && !is_spent(); ++number) {
        for (std::size_t i = 0, rest = number; i < counts.size(); ++i) {
          counts[i] = rest % (of_one[i].size() + 1);
          rest /= of_one[i].size() + 1;
        }
        try_choice(with(on_device, of_one, counts));
      }
    } else {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        std::size_t best = 0;
        for (counts[i] = 1; counts[i] <= of_one[i].size() && !is_spent(); ++counts[i]) {
          if (try_choice(with(on_device, of_one, counts))) best = counts[i];
        }
        counts[i] = best;
      }
    }
    for (const auto& group : of_one) swap_within(group, on_device);
  }

  /// Which gradients of a group go to the host, and not how many.
  void swap_within(const std::vector<std::size_t>& group, const Choice& on_device) {
    for (const std::size_t a : group) {
      for (const std::size_t b : group) {
        if (is_spent()) return;
        if (choice_[a] == on_device[a] || choice_[b] != on_device[b]) continue;
        Choice changed = choice_;
        changed[a] = on_device[a];
        changed[b] = *space_.gradient(b).candidates[on_device[b]].offloaded;
        try_choice(std::move(changed));
      }
    }
  }

  /// Changes of what lies behind the last bubble: of one gradient at a time while that helps, and then of two.
  void repair() {
    do {
      while (change_one() && !is_spent()) {
      }
    } while (!is_spent() && change_two());
  }

  bool change_one() {
    bool helped = false;
    for (const std::size_t g : behind_the_bubble()) {
      for (const std::size_t option : options_[g]) {
        if (is_spent()) return helped;
        helped |= try_option(g, option);
      }
    }
    return helped;
  }

  /// Changes two gradients at a time, because a gain of one may be the other's loss.
  bool change_two() {
    const std::vector<std::size_t> behind = behind_the_bubble();
    for (std::size_t second = 1; second < behind.size(); ++second) {
      for (std::size_t first = 0; first < second; ++first) {
        for (const std::size_t one : options_[behind[first]]) {
          for (const std::size_t other : options_[behind[second]]) {
            if (is_spent()) return false;
            Choice changed = choice_;
            changed[behind[first]] = one;
            changed[behind[second]] = other;
            if (try_choice(std::move(changed))) return true;
          }
        }
      }
    }
    return false;
  }

  /// In the order in which they are looked at.
  std::vector<std::size_t> behind_the_bubble() {
    const std::size_t bubble = last_bubble();
    std::vector<std::size_t> behind;
    for (const std::size_t g : order_) {
      if (space_.in_time().size() - distance_[g] >= bubble) behind.push_back(g);
    }
    return behind;
  }

  SearchSpace& space_;
  Choice& choice_;
  Score& least_;
  std::size_t limit_;
  std::vector<std::size_t> distance_;              // per gradient: how many are ready from it on
  std::vector<std::size_t> order_;                 // in which gradients are looked at
  std::vector<std::vector<std::size_t>> options_;  // per gradient
};

}  // namespace

void decide_options(SearchSpace& space, Choice& choice, Score& least, std::size_t limit) {
  Options(space, choice, least, limit).run();
}

double bound_of(const SearchSpace& space) {
  using Needs = StepModel::Needs;
  const auto least = [&](std::size_t g, double Needs::* what) {
    double fewest = std::numeric_limits<double>::infinity();
    for (const Candidate& one : space.gradient(g).candidates) fewest = std::min(fewest, one.needs.*what);
    return fewest;
  };
  double bound = 0;
  for (std::size_t g = 0; g < space.size(); ++g) bound = std::max(bound, space.ready_s(g) + least(g, &Needs::finish));
  for (double Needs::* what : {&Needs::processor, &Needs::copies, &Needs::nic, &Needs::inside}) {
    double after = 0;
    for (auto at = space.in_time().rbegin(); at != space.in_time().rend(); ++at) {
      if (*at >= space.size()) continue;
      after += least(*at, what);
      bound = std::max(bound, space.ready_s(*at) + after);
    }
  }
  return bound;
}

}  // namespace casync
