#include "engine/admission.hpp"

#include <algorithm>

namespace casync {

std::uint64_t Admission::begin(std::span<const Ticket> tickets) {
  const std::uint64_t first = begun_;
  waiting_.insert(waiting_.end(), tickets.begin(), tickets.end());
  for (const Ticket& ticket : tickets) waiting_bytes_ += ticket.bytes;
  begun_ += tickets.size();
  return first;
}

bool Admission::next(Ticket& ticket) {
  if (waiting_.empty()) return false;
  // A ticket larger than the whole pool runs alone rather than never.
  if (used_ > 0 && used_ + waiting_.front().bytes > pool_) return false;
  ticket = waiting_.front();
  waiting_.pop_front();
  waiting_bytes_ -= ticket.bytes;
  used_ += ticket.bytes;
  peak_ = std::max(peak_, used_);
  ++opened_;
  return true;
}

void Admission::want_credit(std::uint32_t peer) {
  if (std::find(dirty_.begin(), dirty_.end(), peer) == dirty_.end()) dirty_.push_back(peer);
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> Admission::credit_limits() {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> told;
  for (const std::uint32_t peer : dirty_) {
    if (announced_[peer] == opened_) continue;
    announced_[peer] = opened_;
    told.emplace_back(peer, opened_);
  }
  dirty_.clear();
  return told;
}

}  // namespace casync
