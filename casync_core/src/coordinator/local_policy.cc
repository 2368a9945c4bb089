#include "coordinator/local_policy.hpp"

#include "casync/error.hpp"
#include "coordinator/queue_up.hpp"

namespace casync {

LocalPolicy::LocalPolicy(Rank member, Rank members, Options options)
    : options_(options), next_(static_cast<Rank>((member + 1U) % members)), links_(members) {}

void LocalPolicy::add(const SendRequest& request) {
  queue_up(links_[request.peer].queue, request, &SendRequest::priority);
  ++queued_;
}

void LocalPolicy::sent(Rank peer, std::uint64_t bytes) {
  links_[peer].under_way -= bytes;
  under_way_ -= bytes;
}

void LocalPolicy::control(Rank peer, std::span<const std::byte>) {
  throw CorruptPayload(detail::concat("rank ", peer,
                                      " sent a coordinator message, but this rank's coordinator is local; set "
                                      "CASYNC_COORDINATOR alike on all ranks"));
}

void LocalPolicy::decide(Nanoseconds, Outcome& outcome) {
  const auto members = static_cast<Rank>(links_.size());
  Rank refused = 0;
  while (queued_ > 0 && refused < members && (under_way_ == 0 || under_way_ < options_.uplink)) {
    Link& link = links_[next_];
    const bool takes =
        !link.queue.empty() && (link.under_way == 0 || link.under_way + link.queue.front().bytes <= options_.per_link);
    if (takes) {
      const SendRequest request = link.queue.front();
      link.queue.pop_front();
      --queued_;
      link.under_way += request.bytes;
      under_way_ += request.bytes;
      outcome.release.push_back({request});
    }
    refused = takes ? Rank{0} : static_cast<Rank>(refused + 1);
    next_ = static_cast<Rank>((next_ + 1U) % members);
  }
}

}  // namespace casync
