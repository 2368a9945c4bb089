#include "transport/host/neighbours.hpp"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>

#include "casync/error.hpp"

namespace casync::transport::host {
namespace {

/// Never zero, which says that there is no segment.
std::uint64_t draw_nonce() {
  std::random_device random;
  const std::uint64_t drawn = (std::uint64_t{random()} << 32 | random()) ^ static_cast<std::uint64_t>(getpid());
  return drawn == 0 ? 1 : drawn;
}

}  // namespace

bool Neighbours::are_all() const { return std::find(numbers.begin(), numbers.end(), -1) == numbers.end(); }

std::vector<DoorbellCell*> Neighbours::bells() const {
  std::vector<DoorbellCell*> found;
  for (const int number : numbers) found.push_back(number >= 0 ? &memory->bell(number) : nullptr);
  return found;
}

Neighbours meet_neighbours(Rank self, std::span<const int> hosts, int session_tag, bool share_memory,
                           const Exchange& exchange) {
  std::vector<Rank> local;
  for (Rank rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] == hosts[self]) local.push_back(rank);
  }
  const int ranks = static_cast<int>(local.size());
  const Rank leader = local.front();
  const auto name = [&](std::uint64_t nonce) { return detail::concat("/casync-", session_tag, "-", std::hex, nonce); };

  Neighbours met;
  std::uint64_t nonce = 0;
  if (leader == self && ranks > 1 && share_memory) {
    nonce = draw_nonce();
    met.memory = HostMemory::create(name(nonce), ranks, nonce);
    if (!met.memory) nonce = 0;
  }
  nonce = exchange(nonce)[leader];
  if (leader != self && nonce != 0) met.memory = HostMemory::open(name(nonce), ranks, nonce);
  const std::vector<std::uint64_t> mapped = exchange(met.memory != nullptr);
  if (leader == self && nonce != 0) HostMemory::unlink(name(nonce));

  met.numbers.assign(hosts.size(), -1);
  // All ranks of the host, or none: a rank that nobody can ring must know it.
  if (std::all_of(local.begin(), local.end(), [&](Rank rank) { return mapped[rank] != 0; })) {
    for (int i = 0; i < ranks; ++i) met.numbers[local[static_cast<std::size_t>(i)]] = i;
  } else {
    met.memory = HostMemory::own();
    met.numbers[self] = 0;
  }
  return met;
}

}  // namespace casync::transport::host
