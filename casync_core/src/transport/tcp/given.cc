#include "transport/tcp/given.hpp"

#include <poll.h>

#include <span>
#include <string>

#include "casync/error.hpp"

namespace casync::transport::tcp {
namespace {

/// Waits until `socket` has something, or has room.
void await(const Socket& socket, short events, Rank peer, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) throw PeerFailure(detail::concat("rank ", peer, " has not come"), {.peer = peer});
    pollfd set{.fd = socket.descriptor(), .events = events, .revents = 0};
    if (::poll(&set, 1, static_cast<int>(left)) > 0) return;
  }
}

/// Those whose sockets have ended by now, and `one`: a rank that leaves because of another one may be seen first.
std::vector<Rank> gone(const std::vector<Given>& peers, Rank one) {
  std::vector<Rank> gone;
  for (Rank peer = 0; peer < peers.size(); ++peer) {
    pollfd set{.fd = peers[peer].heads.descriptor(), .events = POLLRDHUP, .revents = 0};
    if (peer == one || (set.fd >= 0 && ::poll(&set, 1, 0) > 0)) gone.push_back(peer);
  }
  return gone;
}

}  // namespace

std::vector<Given> take(const std::vector<PeerSockets>& peers) {
  std::vector<Given> taken;
  for (const PeerSockets& peer : peers) {
    Given& given = taken.emplace_back();
    if (peer.heads < 0) continue;
    given.heads = Socket(peer.heads);
    for (const int descriptor : peer.bodies) given.bodies.emplace_back(descriptor);
  }
  return taken;
}

std::vector<std::uint64_t> exchange(Rank self, const std::vector<Given>& peers, std::uint64_t own,
                                    Clock::time_point deadline) {
  std::vector<std::uint64_t> words(peers.size(), own);
  const auto check = [&](const Moved& moved, Rank one) {
    if (!moved.ended && moved.error == 0) return;
    std::string ranks;
    const std::vector<Rank> all = gone(peers, one);
    for (const Rank peer : all) ranks += detail::concat(ranks.empty() ? "rank " : " and rank ", peer);
    throw PeerFailure(detail::concat(ranks, all.size() > 1 ? " have" : " has", " gone while the session was connected",
                                     moved.error != 0 ? ": " + error_text(moved.error) : std::string()),
                      {.peer = one});
  };
  const auto through = [&](Rank peer, std::span<std::byte> bytes, short events, auto move) {
    while (!bytes.empty()) {
      iovec rest = part(bytes);
      const Moved moved = move(peers[peer].heads, std::span(&rest, 1));
      check(moved, peer);
      bytes = bytes.subspan(moved.bytes);
      if (moved.bytes == 0) await(peers[peer].heads, events, peer, deadline);
    }
  };
  for (Rank peer = 0; peer < peers.size(); ++peer) {
    if (peer == self) continue;
    through(peer, std::as_writable_bytes(std::span(&own, 1)), POLLOUT,
            [](const Socket& socket, std::span<iovec> parts) { return socket.send(parts); });
  }
  for (Rank peer = 0; peer < peers.size(); ++peer) {
    if (peer == self) continue;
    through(peer, std::as_writable_bytes(std::span(&words[peer], 1)), POLLIN,
            [](const Socket& socket, std::span<iovec> parts) { return socket.receive(parts); });
  }
  return words;
}

}  // namespace casync::transport::tcp
