#include "executor/virtual/fair_shares.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace casync {
namespace {

constexpr double kLeast = 1e-9;  // of a link's rate: what rounding leaves is no standstill

}  // namespace

FairShares::FairShares(const std::vector<double>& rates, Nanoseconds quantum) : quantum_(quantum), dealt_(-quantum) {
  for (const double rate : rates) links_.insert(links_.end(), 2, Link{.rate = rate});
}

void FairShares::start(std::uint64_t message, std::size_t from, std::size_t to, std::size_t bytes, Nanoseconds now) {
  Moving moving{message, 2 * from, 2 * to + 1, static_cast<double>(bytes), 0, now, now};
  double rate = std::numeric_limits<double>::infinity();
  for (const std::size_t l : {moving.out, moving.in}) {
    Link& link = links_[l];
    if (link.messages > 0) change(now);
    rate = std::min(rate, link.rate / static_cast<double>(++link.messages));
  }
  give(moving, rate, now);
  moving_.push_back(moving);
  std::ranges::push_heap(moving_, later);
}

Nanoseconds FairShares::next() const {
  if (moving_.empty()) return kNever;
  return std::min(moving_.front().end, deals_);
}

const std::vector<std::uint64_t>& FairShares::through(Nanoseconds now) {
  through_.clear();
  while (!moving_.empty() && moving_.front().end <= now) {
    through_.push_back(moving_.front().message);
    for (const std::size_t l : {moving_.front().out, moving_.front().in}) {
      if (--links_[l].messages > 0) change(now);
    }
    std::ranges::pop_heap(moving_, later);
    moving_.pop_back();
  }
  if (now >= deals_) deal(now);
  return through_;
}

/// Rates are to be dealt anew.
void FairShares::change(Nanoseconds now) {
  if (deals_ == kNever) deals_ = std::max(now, dealt_ + quantum_);
}

void FairShares::give(Moving& moving, double rate, Nanoseconds now) {
  moving.left -= moving.rate * static_cast<double>(now - moving.since) * 1e-9;
  moving.rate = rate;
  moving.since = now;
  moving.end = now + static_cast<Nanoseconds>(std::ceil(std::max(0.0, moving.left / rate) * 1e9));
}

/// Progressive filling: of the links that still have messages without a rate, the one with the least for each of them
/// deals what it has.
void FairShares::deal(Nanoseconds now) {
  deals_ = kNever;
  dealt_ = now;
  std::size_t users = 0;
  for (Link& link : links_) {
    link.free = link.rate;
    link.open = 0;
    link.first = users;
    users += link.messages;
  }
  users_.resize(users);
  for (std::uint32_t m = 0; m < moving_.size(); ++m) {
    for (const std::size_t l : {moving_[m].out, moving_[m].in}) users_[links_[l].first + links_[l].open++] = m;
  }
  for (Moving& moving : moving_) moving.has_rate = false;
  const auto offer = [&](std::size_t l) {
    if (links_[l].open == 0) return;
    shares_.emplace_back(links_[l].free / static_cast<double>(links_[l].open), l);
    std::ranges::push_heap(shares_, std::greater());
  };
  for (std::size_t l = 0; l < links_.size(); ++l) offer(l);
  while (!shares_.empty()) {
    std::ranges::pop_heap(shares_, std::greater());
    const auto [share, l] = shares_.back();
    shares_.pop_back();
    const Link& link = links_[l];
    if (link.open == 0) continue;
    if (link.free / static_cast<double>(link.open) > share) {
      offer(l);  // others have left it more since
      continue;
    }
    for (std::size_t u = link.first; u < link.first + link.messages; ++u) {
      Moving& moving = moving_[users_[u]];
      if (std::exchange(moving.has_rate, true)) continue;
      give(moving, std::max(share, kLeast * link.rate), now);
      for (const std::size_t other : {moving.out, moving.in}) {
        links_[other].free -= share;
        --links_[other].open;
      }
    }
  }
  std::ranges::make_heap(moving_, later);
}

}  // namespace casync
