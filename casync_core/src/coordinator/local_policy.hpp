#pragma once

#include <deque>
#include <vector>

#include "coordinator/link_policy.hpp"

namespace casync {

/// The local policy: no central round trip. Each rank keeps its own uplink busy from what is ready, at most `per_link`
/// bytes (and always one message) under way to one peer, visiting peers in the order rank+1, rank+2, ..., so that at
/// the start of a step the ranks' first choices do not collide. There is no barrier: an idle link takes the next
/// message whatever the others do.
class LocalPolicy final : public LinkPolicy {
 public:
  struct Options {
    std::uint64_t per_link = 2 << 20;  ///< bytes under way to one peer
    std::uint64_t uplink = 6 << 20;    ///< bytes under way in all
  };
  LocalPolicy(Rank member, Rank members, Options options);

  void add(const SendRequest& request) override;
  void sent(Rank peer, std::uint64_t bytes) override;
  void control(Rank peer, std::span<const std::byte> message) override;
  void decide(Nanoseconds now, Outcome& outcome) override;
  std::size_t queued() const override { return queued_; }

 private:
  struct Link {
    std::deque<SendRequest> queue;
    std::uint64_t under_way = 0;
  };
  Options options_;
  Rank next_ = 0;  // peer that is asked first
  std::uint64_t under_way_ = 0;
  std::uint64_t queued_ = 0;
  std::vector<Link> links_;
};

}  // namespace casync
