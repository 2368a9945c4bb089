// The search that began before there were lists of phases: blocks of gradients, from all to single ones.
#include <algorithm>
#include <array>
#include <span>

#include "planner/search/search_space.hpp"

namespace casync {
namespace {

class Descent {
 public:
  explicit Descent(SearchSpace& space) : space_(space) {}

  /// Changes `choice` while there is something to gain.
  void improve(Choice& choice, Score& least) {
    if (space_.size() == 0 || space_.bookings() > kSearchBookings) return;
    const double before = least.seconds;
    for (std::size_t blocks = 1;; blocks = std::min(2 * blocks, space_.by_size().size())) {
      for (std::size_t b = 0; b < blocks; ++b) {
        const std::span<const std::size_t> block(space_.by_size().data() + b * space_.by_size().size() / blocks,
                                                 space_.by_size().data() + (b + 1) * space_.by_size().size() / blocks);
        for (const std::string& codec : space_.codecs()) {
          try_change(choice, least, block, kNoticed, [&](std::size_t g) { return space_.gradient(g).with(codec); });
          if (space_.bookings() > kSearchBookings) return;
        }
        change_beyond_rules(choice, least, block);
        if (space_.bookings() > kSearchBookings) return;
      }
      if (blocks >= space_.by_size().size()) break;
    }
    if (least.seconds >= before * (1 - kNoticed)) change_pairs(choice, least);
    if (least.seconds < before * (1 - kNoticed)) improve(choice, least);
  }

 private:
  /// Gives two gradients other codecs at a time: what one of them gains the other may have to pay for.
  void change_pairs(Choice& choice, Score& least) {
    for (std::size_t second = 1; second < space_.by_size().size(); ++second) {
      for (std::size_t first = 0; first < second; ++first) {
        const std::array pair{space_.by_size()[first], space_.by_size()[second]};
        for (std::size_t codecs = 0; codecs < space_.codecs().size() * space_.codecs().size(); ++codecs) {
          const std::array wanted{codecs / space_.codecs().size(), codecs % space_.codecs().size()};
          try_change(choice, least, pair, kNoticed, [&](std::size_t g) {
            return space_.gradient(g).with(space_.codecs()[wanted[g == pair[0] ? 0 : 1]]);
          });
          if (space_.bookings() > kSearchBookings) return;
        }
      }
    }
  }

  /// Tries routes and partitions that the rules would not choose: those of the block's first gradient, for all of it.
  void change_beyond_rules(Choice& choice, Score& least, std::span<const std::size_t> block) {
    const SearchedGradient& first = space_.gradient(block.front());
    for (std::size_t c = first.by_rules; c < first.named; ++c) {
      const Candidate& model = first.candidates[c];
      if (model.way.codec != first.candidates[choice[block.front()]].way.codec) continue;
      try_change(choice, least, block, kWorthwhile,
                 [&](std::size_t g) { return like(space_.gradient(g), choice[g], model); });
      if (space_.bookings() > kSearchBookings) return;
    }
  }

  /// What candidate `c` of another gradient is for one that has candidate `now`: it keeps its codec.
  static std::optional<std::size_t> like(const SearchedGradient& gradient, std::size_t now, const Candidate& model) {
    for (std::size_t c = 0; c < gradient.named; ++c) {
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
    const Score of_changed = space_.score(changed, least.seconds);
    if (!of_changed.better_than(least, share)) return;
    choice = std::move(changed);
    least = of_changed;
  }

  SearchSpace& space_;
};

}  // namespace

void descend(SearchSpace& space, Choice& choice, Score& least) { Descent(space).improve(choice, least); }

}  // namespace casync
