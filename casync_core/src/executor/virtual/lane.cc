#include "executor/virtual/lane.hpp"

#include <algorithm>

#include "casync/error.hpp"

namespace casync {

void VirtualLane::open(Tell tell) {
  is_there_[port_.rank()] = true;
  const std::byte hello{1};
  for (Rank peer = 0; peer < port_.size(); ++peer) {
    if (peer != port_.rank()) tell(peer, std::span(&hello, 1));
  }
}

void VirtualLane::hear(Rank peer, std::span<const std::byte> message) {
  CASYNC_CHECK(message.size() == 1 && !is_there_[peer], "the lane of rank ", peer, " opened twice");
  is_there_[peer] = true;
}

bool VirtualLane::ready() const {
  return std::ranges::all_of(is_there_, [](bool is_there) { return is_there; });
}

void VirtualLane::send(Rank peer, MemoryRef body, std::uint64_t id) {
  CASYNC_CHECK(body.on_device(), "memory of the host goes by the lane");
  port_.send_body(peer, body.span(), id);
}

void VirtualLane::accept(Rank peer, MemoryRef body, std::uint64_t id) {
  CASYNC_CHECK(body.on_device(), "memory of the host is accepted by the lane");
  if (body.data == nullptr) body.data = lost_.emplace_back(body.bytes).data();
  port_.accept(peer, body.span(), id);
}

}  // namespace casync
