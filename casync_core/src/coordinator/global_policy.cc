#include "coordinator/global_policy.hpp"

#include <algorithm>
#include <iterator>

#include "common/wire.hpp"

namespace casync {

GlobalPolicy::GlobalPolicy(Rank member, Rank members, CoordinatorOptions options)
    : member_(member), members_(members), options_(options), waiting_(members) {
  if (member == 0) slots_.emplace(members);
}

void GlobalPolicy::add(const SendRequest& request) {
  std::deque<Batch>& batches = waiting_[request.peer].batches;
  auto open = std::find_if(batches.rbegin(), batches.rend(), [](const Batch& batch) { return !batch.full; });
  if (open != batches.rend() && open->bytes + request.bytes > options_.batch_bytes) {
    open->full = true;
    open = batches.rend();
  }
  if (open == batches.rend()) {
    batches.emplace_back();
    batches.back().priority = request.priority;
    open = batches.rbegin();
  }
  open->sends.push_back(request);
  open->bytes += request.bytes;
  open->priority = std::max(open->priority, request.priority);
  open->full = open->bytes >= options_.batch_bytes;
  ++queued_;
  for (auto next = std::next(open); next != batches.rend() && next->priority < open->priority; open = next++) {
    std::swap(*open, *next);
  }
}

void GlobalPolicy::sent(Rank peer, std::uint64_t /*bytes*/) {
  if (uncoordinated_ || --under_way_ > 0) return;
  tell(0, {Kind::left, peer});
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
    const bool to_root = message.kind != Kind::granted;
    if (message.peer >= members_ || (to_root ? !slots_ : peer != 0)) {
      throw CorruptPayload(detail::concat("rank ", peer, " sent a coordinator message that is not one"));
    }
    on_message(peer, message);
  }
}

void GlobalPolicy::on_message(Rank from, const Message& message) {
  const Link link{from, message.peer};
  bool makes_sense = true;
  switch (message.kind) {
    case Kind::asked:
      slots_->ask(link);
      break;
    case Kind::opened:
      makes_sense = slots_->opened(link);
      break;
    case Kind::left:
      makes_sense = slots_->left(link);
      break;
    case Kind::granted: {
      const auto asked = static_cast<std::ptrdiff_t>(waiting_[link.to].asked);
      makes_sense = std::ranges::count(granted_, link.to) < asked;
      if (!makes_sense) break;
      granted_.push_back(link.to);
      --asked_;
      break;
    }
    default:
      makes_sense = false;
  }
  if (!makes_sense) {
    throw CorruptPayload(detail::concat("rank ", from, " sent a coordinator message about a batch to rank ", link.to,
                                        ", which there is not"));
  }
}

bool GlobalPolicy::ripe(const Batch& batch, Nanoseconds now) const {
  return batch.full || now - *batch.since >= options_.timeout;
}

/// Asks for what is ripe, or sends it: the links from each rank to the next one need no leave.
void GlobalPolicy::ask(Nanoseconds now, Outcome& outcome) {
  for (std::uint32_t step = 1; step < members_; ++step) {
    const auto peer = static_cast<Rank>((member_ + step) % members_);
    auto& [batches, asked] = waiting_[peer];
    for (Batch& batch : batches) {
      if (!batch.since) batch.since = now;
    }
    if (peer == next_rank() && rests() && !batches.empty() && ripe(batches.front(), now)) {
      release(peer, outcome);
      tell(0, {Kind::opened, peer});
    }
    const auto is_ripe = [&](const Batch& batch) { return ripe(batch, now); };
    const auto wanted = static_cast<std::size_t>(std::ranges::count_if(batches, is_ripe));
    for (; asked < wanted; ++asked) {
      ++asked_;
      tell(0, {Kind::asked, peer});
    }
  }
}

/// The next batch to `peer` goes.
void GlobalPolicy::release(Rank peer, Outcome& outcome) {
  auto& [batches, asked] = waiting_[peer];
  Batch& batch = batches.front();
  queued_ -= batch.sends.size();
  under_way_ += batch.sends.size();
  outcome.release.push_back(std::move(batch.sends));
  batches.pop_front();
  if (asked > 0) --asked;
}

void GlobalPolicy::left(Rank peer) {
  if (peer == 0) uncoordinated_ = true;
  if (slots_) slots_->forget(peer);
}

std::optional<Nanoseconds> GlobalPolicy::wakes_at() const {
  if (slots_ && slots_->due()) return decided_at_;
  std::optional<Nanoseconds> earliest;
  for (const Waiting& waiting : waiting_) {
    for (const Batch& batch : waiting.batches) {
      if (!batch.since || ripe(batch, decided_at_)) continue;
      const Nanoseconds due = *batch.since + options_.timeout;
      earliest = std::min(earliest.value_or(due), due);
    }
  }
  return earliest;
}

void GlobalPolicy::decide(Nanoseconds now, Outcome& outcome) {
  decided_at_ = now;
  if (uncoordinated_) {
    for (Rank peer = 0; peer < members_; ++peer) {
      while (!waiting_[peer].batches.empty()) release(peer, outcome);
    }
    outgoing_.clear();
    return;
  }
  ask(now, outcome);
  if (slots_) {
    for (const Link link : slots_->next()) tell(link.from, {Kind::granted, link.to});
  }
  if (under_way_ == 0 && !granted_.empty()) {
    release(granted_.front(), outcome);
    granted_.pop_front();
  }
  for (const auto& [peer, message] : outgoing_) {
    auto at = std::find_if(outcome.messages.begin(), outcome.messages.end(),
                           [to = peer](const auto& entry) { return entry.first == to; });
    if (at == outcome.messages.end()) at = outcome.messages.insert(at, {peer, {}});
    ByteWriter(at->second).put(message);
  }
  outgoing_.clear();
}

}  // namespace casync
