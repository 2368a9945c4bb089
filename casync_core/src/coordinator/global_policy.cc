#include "coordinator/global_policy.hpp"

#include <algorithm>

#include "common/wire.hpp"

namespace casync {

GlobalPolicy::GlobalPolicy(Rank member, Rank members, Options options)
    : member_(member),
      members_(members),
      options_(options),
      queues_(members),
      permitted_(members, 0),
      batches_(members),
      links_(member == 0 ? static_cast<std::size_t>(members) * members : 0),
      uplink_batches_(members, 0),
      downlink_batches_(members, 0) {}

void GlobalPolicy::add(const SendRequest& request) {
  queues_[request.peer].push_back(request);
  ++queued_;
  tell(0, {Kind::queued, static_cast<std::uint16_t>(request.peer), 1, request.bytes});
}

void GlobalPolicy::sent(Rank peer, std::uint64_t) {
  if (uncoordinated_) return;
  auto& batches = batches_[peer];
  if (--batches.front() > 0) return;
  batches.pop_front();
  tell(0, {Kind::done, static_cast<std::uint16_t>(peer), 1, 0});
}

void GlobalPolicy::tell(Rank peer, const Message& message) {
  if (peer == member_) {
    on_message(member_, message);
  } else {
    outgoing_.emplace_back(peer, message);
  }
}

void GlobalPolicy::control(Rank peer, std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  while (reader.left() > 0) {
    const auto message = reader.get<Message>();
    if (message.peer >= members_ || (message.kind != Kind::permit && member_ != 0)) {
      throw CorruptPayload(detail::concat("rank ", peer, " sent a coordinator message that is not one"));
    }
    on_message(peer, message);
  }
}

void GlobalPolicy::on_message(Rank from, const Message& message) {
  switch (message.kind) {
    case Kind::queued: {
      Link& to = link(from, message.peer);
      to.queue.push_back({message.bytes, 0});
      to.queued += message.bytes;
      break;
    }
    case Kind::permit:
      permitted_[message.peer] += message.count;
      batches_[message.peer].push_back(message.count);
      break;
    case Kind::done:
      --link(from, message.peer).under_way;
      --uplink_batches_[from];
      --downlink_batches_[message.peer];
      break;
  }
}

void GlobalPolicy::coordinate(Nanoseconds now) {
  struct Candidate {
    std::uint64_t queued;
    Rank from, to;
  };
  std::vector<Candidate> candidates;
  for (Rank from = 0; from < members_; ++from) {
    for (Rank to = 0; to < members_; ++to) {
      Link& one = link(from, to);
      for (auto entry = one.queue.rbegin(); entry != one.queue.rend() && entry->since == 0; ++entry) entry->since = now;
      if (one.queue.empty()) continue;
      const bool ripe = one.queued >= options_.batch_bytes || now - one.queue.front().since >= options_.max_delay;
      if (ripe) candidates.push_back({one.queued, from, to});
    }
  }
  // The fullest links first, so that no link's queue grows behind the others.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.queued > b.queued; });
  for (const auto& [queued, from, to] : candidates) {
    if (uplink_batches_[from] >= options_.depth || downlink_batches_[to] >= options_.depth) continue;
    Link& one = link(from, to);
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
    while (!one.queue.empty() && (count == 0 || bytes + one.queue.front().bytes <= options_.batch_bytes)) {
      bytes += one.queue.front().bytes;
      one.queue.pop_front();
      ++count;
    }
    one.queued -= bytes;
    ++one.under_way;
    ++uplink_batches_[from];
    ++downlink_batches_[to];
    tell(from, {Kind::permit, static_cast<std::uint16_t>(to), count, bytes});
  }
}

void GlobalPolicy::left(Rank peer) {
  if (peer == 0) uncoordinated_ = true;
}

std::optional<Nanoseconds> GlobalPolicy::wakes_at() const {
  constexpr Nanoseconds kSoon = 200'000;
  const bool waits = std::any_of(links_.begin(), links_.end(), [](const Link& link) { return !link.queue.empty(); });
  return waits ? std::optional(decided_at_ + kSoon) : std::nullopt;
}

void GlobalPolicy::decide(Nanoseconds now, Outcome& outcome) {
  decided_at_ = now;
  if (member_ == 0) coordinate(now);
  for (Rank peer = 0; peer < members_; ++peer) {
    while ((permitted_[peer] > 0 || uncoordinated_) && !queues_[peer].empty()) {
      outcome.release.push_back(queues_[peer].front());
      queues_[peer].pop_front();
      --queued_;
      if (!uncoordinated_) --permitted_[peer];
    }
  }
  if (uncoordinated_) outgoing_.clear();
  for (const auto& [peer, message] : outgoing_) {
    auto at = std::find_if(outcome.messages.begin(), outcome.messages.end(),
                           [to = peer](const auto& entry) { return entry.first == to; });
    if (at == outcome.messages.end()) at = outcome.messages.insert(at, {peer, {}});
    ByteWriter(at->second).put(message);
  }
  outgoing_.clear();
}

}  // namespace casync
