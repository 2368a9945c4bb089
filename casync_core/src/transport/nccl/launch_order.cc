#include "transport/nccl/launch_order.hpp"

#include <algorithm>

#include "casync/error.hpp"

namespace casync::nccl {

void LaunchOrder::send(Rank peer, const Body& body) {
  CASYNC_CHECK(peer != rank_);
  peers_[peer].sent.push_back(body);
  tell(peer, Word::offer, body.bytes);
}

void LaunchOrder::accept(Rank peer, const Body& body) {
  CASYNC_CHECK(peer != rank_);
  peers_[peer].accepted.push_back(body);
  meet(peer);
}

/// What is offered and what is accepted meet in order.
void LaunchOrder::meet(Rank peer) {
  Peer& from = peers_[peer];
  while (!from.offered.empty() && !from.accepted.empty()) {
    const std::uint64_t bytes = from.offered.front();
    const Exchange exchange{peer, false, from.accepted.front()};
    from.offered.pop_front();
    from.accepted.pop_front();
    if (exchange.body.memory == nullptr || bytes == 0) {
      tell(peer, Word::leave);
      unmoved_.push_back(exchange);
      continue;
    }
    if (bytes != exchange.body.bytes) {
      throw CorruptPayload(detail::concat("rank ", peer, " sends ", bytes, " bytes between devices where ",
                                          exchange.body.bytes, " were accepted"),
                           {.peer = peer});
    }
    tell(peer, Word::take, ++clock_);
    queue_.emplace(Key{clock_, peer, ++from.exchanges}, Entry{exchange, false});
  }
}

void LaunchOrder::hear(Rank peer, Word word, std::uint64_t value) {
  Peer& there = peers_[peer];
  if (word == Word::offer) {
    there.offered.push_back(value);
    return meet(peer);
  }
  if (word == Word::go) return settle(peer, value);
  if (there.sent.empty())
    throw CorruptPayload(detail::concat("rank ", peer, " answers an offer that it never got"), {.peer = peer});
  const Exchange exchange{peer, true, there.sent.front()};
  there.sent.pop_front();
  if (word == Word::leave) {
    unmoved_.push_back(exchange);
    return;
  }
  clock_ = std::max(clock_ + 1, value);
  queue_.emplace(Key{clock_, rank_, ++there.exchanges}, Entry{exchange, true});
  tell(peer, Word::go, clock_);
}

/// Of what was taken from `peer` and has no time yet, the oldest: answers come in order.
void LaunchOrder::settle(Rank peer, std::uint64_t time) {
  const auto at = std::ranges::find_if(
      queue_, [&](const auto& item) { return !item.second.is_settled && item.second.exchange.peer == peer; });
  if (at == queue_.end() || time < std::get<0>(at->first))
    throw CorruptPayload(detail::concat("rank ", peer, " says a time that cannot be"), {.peer = peer});
  clock_ = std::max(clock_, time);
  auto node = queue_.extract(at);
  std::get<0>(node.key()) = time;
  node.mapped().is_settled = true;
  queue_.insert(std::move(node));
}

std::vector<LaunchOrder::Exchange> LaunchOrder::next_group() {
  std::vector<Exchange> group;
  std::set<std::pair<Rank, bool>> directions;
  while (!queue_.empty() && group.size() < kMostOfGroup) {
    const auto& [exchange, is_settled] = queue_.begin()->second;
    if (!is_settled || !directions.emplace(exchange.peer, exchange.is_send).second) break;
    const bool have_met = peers_[exchange.peer].met.contains(exchange.is_send);
    if (!have_met && !group.empty()) break;
    group.push_back(exchange);
    peers_[exchange.peer].met.insert(exchange.is_send);
    queue_.erase(queue_.begin());
    if (!have_met) break;
  }
  return group;
}

}  // namespace casync::nccl
