#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

namespace casync {

/// Memory of the runtime, handed out in the one order in which all ranks begin operations.
///
/// Every begun partition is a *unit*, numbered alike on all ranks. Units get their memory strictly in that order, and a
/// rank tells its peers up to which unit they may send (Window). Because the order is one and the same everywhere, the
/// oldest unit of the job always has its memory on every rank and can finish: a bounded pool cannot deadlock, whatever
/// order the ranks submit in.
class Admission {
 public:
  static constexpr std::uint32_t kNobody = 0xffffffffU;  ///< of a unit in which this rank has no task

  struct Unit {
    std::uint32_t instance = 0;
    std::uint32_t partition = 0;
    std::size_t bytes = 0;
  };

  Admission(std::size_t pool_bytes, std::uint32_t members)
      : pool_(pool_bytes), allowed_(members, 0), announced_(members, 0) {}

  /// Begins the next units; returns the number of the first.
  std::uint64_t begin(std::span<const Unit> units);
  /// Units that now have memory, oldest first; called until it returns false.
  bool next(Unit& unit);
  void release(std::size_t bytes) { used_ -= bytes; }

  /// May this rank send what lands in the memory of `peer` for `unit`?
  bool may_send(std::uint32_t peer, std::uint64_t unit) const { return unit < allowed_[peer]; }
  void allow(std::uint32_t peer, std::uint64_t units) { allowed_[peer] = units; }

  /// Peers that must hear of a new window, because they send into a unit opened since; cleared by the call.
  void want_window(std::uint32_t peer);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> windows();

  std::size_t pool() const { return pool_; }
  std::size_t used() const { return used_; }
  std::size_t peak() const { return peak_; }
  std::size_t waiting() const { return waiting_.size(); }  ///< units that have no memory yet
  /// What is left of the pool for units that have not begun; 0: some that have begun wait. An empty pool has room.
  std::size_t room() const {
    const std::size_t taken = used_ + waiting_bytes_;
    return taken == 0 ? std::max<std::size_t>(pool_, 1) : pool_ - std::min(taken, pool_);
  }

 private:
  std::size_t pool_;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t opened_ = 0;
  std::deque<Unit> waiting_;
  std::vector<std::uint64_t> allowed_;    // per peer: their window, as they told us
  std::vector<std::uint64_t> announced_;  // per peer: ours, as we told them
  std::vector<std::uint32_t> dirty_;
};

}  // namespace casync
