#include "coordinator/slots.hpp"

#include <algorithm>

namespace casync {

namespace {

constexpr Rank kNobody = static_cast<Rank>(~0U);

}  // namespace

Slots::Slots(Rank members)
    : members_(members), queues_(std::size_t{members} * members), sending_(members, 0), getting_(members, 0) {}

void Slots::ask(Link link) {
  queue(link).asked.push_back(asks_++);
  due_ = true;
}

bool Slots::opened(Link link) {
  if (sending_[link.from] > 0) return false;
  ++queue(link).granted;
  ++sending_[link.from];
  ++getting_[link.to];
  return true;
}

bool Slots::left(Link link) {
  if (queue(link).granted == 0) return false;
  --queue(link).granted;
  --sending_[link.from];
  --getting_[link.to];
  due_ = true;
  return true;
}

void Slots::forget(Rank rank) {
  for (Rank to = 0; to < members_; ++to) {
    while (left({rank, to})) {
    }
    queue({rank, to}).asked.clear();
  }
}

/// Whether a batch may be granted to the link besides what is granted already.
bool Slots::may_go(Link link) const {
  if (queue(link).asked.empty()) return false;
  if (sending_[link.from] == 0) return getting_[link.to] == 0;
  return sending_[link.from] < kAhead && getting_[link.to] < kAhead;
}

/// Those to whom `from` may be granted a batch, the one that has waited longest first.
std::vector<Rank> Slots::receivers_of(Rank from) const {
  std::vector<Rank> found;
  for (Rank to = 0; to < members_; ++to) {
    if (may_go({from, to})) found.push_back(to);
  }
  std::ranges::sort(found, {}, [&](Rank to) { return queue({from, to}).asked.front(); });
  return found;
}

/// Gives `from` a receiver; one that is taken already if its sender can have another one (an augmenting path).
bool Slots::match(Rank from, std::vector<Rank>& sender_of, std::vector<bool>& tried) const {
  for (const Rank to : receivers_of(from)) {
    if (tried[to]) continue;
    tried[to] = true;
    if (sender_of[to] == kNobody || match(sender_of[to], sender_of, tried)) {
      sender_of[to] = from;
      return true;
    }
  }
  return false;
}

std::vector<Link> Slots::next() {
  if (!due_) return {};
  struct Sender {
    bool sends;  // those that rest come first: their batch goes at once
    std::uint64_t since;
    Rank rank;
    auto operator<=>(const Sender&) const = default;
  };
  std::vector<Sender> senders;
  for (Rank from = 0; from < members_; ++from) {
    const std::vector<Rank> receivers = receivers_of(from);
    if (receivers.empty()) continue;
    senders.push_back({sending_[from] > 0, queue({from, receivers.front()}).asked.front(), from});
  }
  std::ranges::sort(senders);
  std::vector<Rank> sender_of(members_, kNobody);
  for (const Sender& sender : senders) {
    std::vector<bool> tried(members_, false);
    match(sender.rank, sender_of, tried);
  }
  std::vector<Link> slot;
  for (Rank to = 0; to < members_; ++to) {
    if (sender_of[to] != kNobody) slot.push_back({sender_of[to], to});
  }
  for (const Link link : slot) {
    queue(link).asked.pop_front();
    ++queue(link).granted;
    ++sending_[link.from];
    ++getting_[link.to];
  }
  due_ = !slot.empty();
  return slot;
}

}  // namespace casync
