#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "casync/types.hpp"
#include "transport/tcp/socket.hpp"
#include "transport/tcp/tcp_transport.hpp"

/// The sockets of a session before it is one: its ranks exchange a few words over them.
namespace casync::transport::tcp {

using Clock = std::chrono::steady_clock;

/// Sockets to one peer as they were given; those not moved out are closed.
struct Given {
  Socket heads;
  std::vector<Socket> bodies;
};

std::vector<Given> take(const std::vector<PeerSockets>& peers);

/// Every rank gives a word, every rank gets all, by rank. Blocks; throws PeerFailure that names who has gone, or has
/// not come by the deadline.
std::vector<std::uint64_t> exchange(Rank self, const std::vector<Given>& peers, std::uint64_t own,
                                    Clock::time_point deadline);

}  // namespace casync::transport::tcp
