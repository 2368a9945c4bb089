#include "coordinator/local_policy.hpp"

#include "casync/error.hpp"

namespace casync {

LocalPolicy::LocalPolicy(std::uint16_t member, std::uint16_t members, Options options)
    : options_(options), next_(static_cast<std::uint16_t>((member + 1U) % members)), links_(members) {}

void LocalPolicy::add(const SendRequest& request) {
  links_[request.peer].queue.push_back(request);
  ++queued_;
}

void LocalPolicy::sent(std::uint16_t peer, std::uint64_t bytes) {
  links_[peer].under_way -= bytes;
  under_way_ -= bytes;
}

void LocalPolicy::control(std::uint16_t peer, std::span<const std::byte>) {
  throw CorruptPayload(detail::concat("rank ", peer,
                                      " sent a coordinator message, but this rank's coordinator is local; set "
                                      "CASYNC_COORDINATOR alike on all ranks"));
}

void LocalPolicy::decide(Nanoseconds, Outcome& outcome) {
  const auto members = static_cast<std::uint16_t>(links_.size());
  std::uint16_t refused = 0;
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
      outcome.release.push_back(request);
    }
    refused = takes ? std::uint16_t{0} : static_cast<std::uint16_t>(refused + 1);
    next_ = static_cast<std::uint16_t>((next_ + 1U) % members);
  }
}

}  // namespace casync
