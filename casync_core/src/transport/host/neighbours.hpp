#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "casync/types.hpp"
#include "transport/host/host_memory.hpp"

/// How the ranks of a session that share a host find their shared memory.
namespace casync::transport::host {

/// What a rank shares with those of its host.
struct Neighbours {
  std::vector<int> numbers;            ///< per rank of the session its number on this host, or -1 if it is on another
  std::unique_ptr<HostMemory> memory;  ///< never null; has at least this rank's doorbell

  /// Whether every rank of the session is on this host, and can be rung.
  bool are_all() const;
  /// Per rank of the session its doorbell, or null if it is on another host.
  std::vector<DoorbellCell*> bells() const;
};

/// Every rank gives a word, and gets those of all, by rank. Collective over the session.
using Exchange = std::function<std::vector<std::uint64_t>(std::uint64_t own)>;

/// Collective over the session, of which `hosts` has a number per rank, equal for those of one host. Without
/// `share_memory`, or where some rank of the host cannot have it, this rank is alone in `numbers`.
Neighbours meet_neighbours(Rank self, std::span<const int> hosts, int session_tag, bool share_memory,
                           const Exchange& exchange);

}  // namespace casync::transport::host
