#include "engine/admission.hpp"

#include <algorithm>

namespace casync {

std::uint64_t Admission::begin(std::span<const Unit> units) {
  const std::uint64_t first = begun_;
  waiting_.insert(waiting_.end(), units.begin(), units.end());
  for (const Unit& unit : units) waiting_bytes_ += unit.bytes;
  begun_ += units.size();
  return first;
}

bool Admission::next(Unit& unit) {
  if (waiting_.empty()) return false;
  // A unit larger than the whole pool runs alone rather than never.
  if (used_ > 0 && used_ + waiting_.front().bytes > pool_) return false;
  unit = waiting_.front();
  waiting_.pop_front();
  waiting_bytes_ -= unit.bytes;
  used_ += unit.bytes;
  peak_ = std::max(peak_, used_);
  ++opened_;
  return true;
}

void Admission::want_window(std::uint32_t peer) {
  if (std::find(dirty_.begin(), dirty_.end(), peer) == dirty_.end()) dirty_.push_back(peer);
}

std::vector<std::pair<std::uint32_t, std::uint64_t>> Admission::windows() {
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
