#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "casync/transport.hpp"
#include "casync/types.hpp"

namespace casync {

/// Decides whom to ask for an answer, to measure how long a short message is on its way: one rank after the other, one
/// question at a time; after the first kFirst of them no more than one in kInterval. Pure: times are passed in.
class Pings {
 public:
  static constexpr std::size_t kFirst = 64;
  static constexpr Nanoseconds kInterval = 1'000'000'000;

  /// Of rank `self` among `size` ranks.
  Pings(Rank self, Rank size) : self_(self), size_(size), next_(self) {}

  /// The rank to ask now; nothing: an answer is to come first, or it is too early.
  std::optional<Rank> ask(Nanoseconds now) {
    if (asked_ || size_ <= 1 || (count_ >= kFirst && now - last_ < kInterval)) return std::nullopt;
    ++count_;
    last_ = now;
    next_ = (next_ + 1) % size_;
    if (next_ == self_) next_ = (next_ + 1) % size_;
    asked_ = now;
    return next_;
  }
  /// `peer` has answered. Returns how long that took; nothing: it was not asked.
  std::optional<Nanoseconds> answered(Rank peer, Nanoseconds now) {
    if (!asked_ || peer != next_) return std::nullopt;
    const Nanoseconds time = now - *asked_;
    asked_.reset();
    return time;
  }

 private:
  Rank self_, size_;
  Rank next_;  // asked last
  std::size_t count_ = 0;
  Nanoseconds last_ = 0;
  std::optional<Nanoseconds> asked_;  // and not answered
};

}  // namespace casync
