#include "transport/host/host_mail.hpp"

#include <utility>

#include "casync/error.hpp"

namespace casync::transport::host {

HostMail::HostMail(Rank self, const Neighbours& neighbours) : boxes_(neighbours.numbers.size()) {
  const int mine = neighbours.numbers[self];
  for (Rank peer = 0; peer < boxes_.size(); ++peer) {
    const int theirs = neighbours.numbers[peer];
    if (peer == self || theirs < 0) continue;
    const auto out = neighbours.memory->mailbox(mine, theirs), in = neighbours.memory->mailbox(theirs, mine);
    if (out.empty()) continue;
    boxes_[peer] = std::make_unique<Boxes>(Boxes{MailboxWriter(out), MailboxReader(in)});
    peers_.push_back(peer);
  }
}

void HostMail::post(Rank peer, HeadKind kind, std::vector<std::byte>&& head) {
  Boxes& to = box(peer);
  if (to.kept.empty() && to.out.put(static_cast<std::uint64_t>(kind), head)) return;
  to.kept.push_back({kind, std::move(head)});
  ++kept_;
}

bool HostMail::post_kept(const std::function<void(Rank peer)>& posted) {
  if (kept_ == 0) return false;
  const std::size_t before = kept_;
  for (const Rank peer : peers_) {
    Boxes& to = box(peer);
    while (!to.kept.empty()) {
      const GradientState& head = to.kept.front();
      if (!to.out.put(static_cast<std::uint64_t>(head.kind), head.bytes)) break;
      to.kept.pop_front();
      --kept_;
      posted(peer);
    }
  }
  return kept_ < before;
}

void HostMail::forget(Rank peer) {
  if (!reaches(peer)) return;
  kept_ -= box(peer).kept.size();
  box(peer).kept.clear();
}

std::optional<HostMail::Head> HostMail::front(Rank peer) {
  Boxes& from = box(peer);
  if (from.corrupt) return std::nullopt;
  try {
    const auto message = from.in.front();
    if (!message) return std::nullopt;
    if (message->kind >= static_cast<std::uint64_t>(HeadKind::goodbye))  // which comes by the network
      throw CorruptPayload(detail::concat("a head of kind ", message->kind));
    return Head{static_cast<HeadKind>(message->kind), message->bytes};
  } catch (const CorruptPayload&) {
    from.corrupt = true;
    throw;
  }
}

}  // namespace casync::transport::host
