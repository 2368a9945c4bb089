#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace casync {

/// Decides which of many things are kept: the last used ones, up to a limit. Each thing has a number, and a name that
/// several may share. Pure: equal calls give equal answers.
///
/// A name that comes back after all of its things had to go shows that the program goes round more names than there is
/// room for, and would have to begin each of them anew in every round: so the limit grows by one. Other shapes of a
/// name that is there make no room.
class LeastUsed {
 public:
  struct Thing {
    std::uint32_t number;
    std::uint64_t name;
  };
  using Place = std::list<Thing>::iterator;
  struct Limits {
    std::size_t first = 1024;
    std::size_t most = 16384;  ///< and of the names that have gone as many are remembered
  };

  explicit LeastUsed(Limits limits) : limit_(std::max<std::size_t>(limits.first, 1)), most_(limits.most) {}

  Place add(std::uint32_t number, std::uint64_t name) {
    if (++of_name_[name] == 1 && gone_.erase(name) > 0 && limit_ < most_) ++limit_;
    things_.push_front({number, name});
    return things_.begin();
  }
  void use(Place place) { things_.splice(things_.begin(), things_, place); }
  /// The least used thing beyond the limit for which `may_go(number)` holds is there no more. What may not go is in
  /// use, and counts as used just now. Nothing: all that were looked at are in use.
  template <typename MayGo>
  std::optional<std::uint32_t> evict(const MayGo& may_go) {
    for (std::size_t look = 0; look < kLooks && things_.size() > limit_; ++look) {
      const auto [number, name] = things_.back();
      if (may_go(number)) {
        things_.pop_back();
        forget(name);
        return number;
      }
      use(std::prev(things_.end()));
    }
    return std::nullopt;
  }
  std::size_t size() const { return things_.size(); }
  std::size_t limit() const { return limit_; }

 private:
  static constexpr std::size_t kLooks = 32;

  void forget(std::uint64_t name) {
    const auto at = of_name_.find(name);
    if (--at->second > 0) return;
    of_name_.erase(at);
    if (gone_.insert(name).second) went_.push_back(name);
    if (went_.size() <= most_) return;
    gone_.erase(went_.front());
    went_.pop_front();
  }

  std::size_t limit_;
  std::size_t most_;
  std::list<Thing> things_;                                   // the last used one first
  std::unordered_map<std::uint64_t, std::uint32_t> of_name_;  // how many things
  std::unordered_set<std::uint64_t> gone_;                    // names of which there is none any more
  std::deque<std::uint64_t> went_;                            // the same, as they went, and some that came back
};

}  // namespace casync
