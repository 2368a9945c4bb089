#include "engine/heartbeat.hpp"

#include "casync/error.hpp"

namespace casync {

Heartbeat::Heartbeat(std::uint32_t self, std::uint32_t members, Options options)
    : self_(self), options_(options), peers_(members) {}

Heartbeat::Outcome Heartbeat::check(Nanoseconds now) {
  Outcome outcome;
  // A rank that itself was stopped finds its clock far ahead: its questions were not unanswered, they were not asked.
  const bool slept = last_check_ != 0 && now - last_check_ > 2 * options_.interval;
  last_check_ = now;
  for (std::uint32_t p = 0; p < peers_.size(); ++p) {
    Peer& peer = peers_[p];
    if (p == self_ || peer.gone) continue;
    if (slept) peer.asked_at = 0;
    if (peer.asked_at != 0 && now - peer.asked_at >= options_.timeout) {
      peer.gone = true;
      outcome.lost.emplace_back(
          p, detail::concat("rank ", p, " gave no sign of life for ", (now - peer.asked_at) / 1'000'000'000,
                            " s (stopped, or its network is down); CASYNC_PEER_TIMEOUT_SECONDS sets this time"));
    } else if (now - peer.last_ask >= options_.interval) {
      if (peer.asked_at == 0) peer.asked_at = now;
      peer.last_ask = now;
      outcome.ask.push_back(p);
    }
  }
  return outcome;
}

void Heartbeat::rest() {
  last_check_ = 0;
  for (Peer& peer : peers_) peer.asked_at = 0;
}

}  // namespace casync
