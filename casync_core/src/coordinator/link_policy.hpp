#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// A send that is ready: a task in Q_commu (paper: section 3.1).
struct SendRequest {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  Rank peer = 0;
  std::uint64_t bytes = 0;
  std::int32_t priority = 0;
};

/// Decides which ready sends go out now, over which links. Pure: time is passed in, nothing is sent here. Sends that
/// fit into a head never come here: they cost a link next to nothing and leave at once. Of those that wait for one link
/// a higher priority goes first, and among equals what came first.
class LinkPolicy {
 public:
  virtual ~LinkPolicy() = default;
  virtual void add(const SendRequest& request) = 0;
  virtual void sent(Rank peer, std::uint64_t bytes) = 0;  ///< a released send left this rank
  /// A message of this policy from the same policy on `peer`.
  virtual void control(Rank peer, std::span<const std::byte> message) = 0;
  /// Appends what to release, in order, and the policy's own messages as (peer, bytes). A batch is what travels
  /// together to one peer.
  struct Outcome {
    using Batch = std::vector<SendRequest>;
    std::vector<Batch> release;
    std::vector<std::pair<Rank, std::vector<std::byte>>> messages;
    void clear() {
      release.clear();
      messages.clear();
    }
  };
  virtual void decide(Nanoseconds now, Outcome& outcome) = 0;
  /// `peer` shut down in good order and takes no part in decisions any more.
  virtual void left(Rank /*peer*/) {}
  /// Sends that were added and not released.
  virtual std::size_t queued() const = 0;
  /// When `decide` must be called again though nothing happens. Nothing: there is no such time.
  virtual std::optional<Nanoseconds> wakes_at() const { return std::nullopt; }
};

}  // namespace casync
