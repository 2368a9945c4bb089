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
/// Every begun partition draws a *ticket*, and tickets are numbered alike on all ranks. They get their memory strictly
/// in that order, and a rank tells its peers up to which ticket they may send: its *credit limit*. Because the order is
/// one and the same everywhere, the oldest ticket of the job always has its memory on every rank and can finish: a
/// bounded pool cannot deadlock, whatever order the ranks submit in.
class Admission {
 public:
  static constexpr std::uint32_t kUnused = 0xffffffffU;  ///< of a ticket in which this rank has no task

  struct Ticket {
    std::uint32_t instance = 0;
    std::uint32_t partition = 0;
    std::size_t bytes = 0;
  };

  Admission(std::size_t pool_bytes, std::uint32_t members)
      : pool_(pool_bytes), limits_(members, 0), announced_(members, 0) {}

  /// Begins the next tickets; returns the number of the first.
  std::uint64_t begin(std::span<const Ticket> tickets);
  /// Tickets that now have memory, oldest first; called until it returns false.
  bool next(Ticket& ticket);
  void release(std::size_t bytes) { used_ -= bytes; }

  /// May this rank send what lands in the memory of `peer` for `ticket`?
  bool may_send(std::uint32_t peer, std::uint64_t ticket) const { return ticket < limits_[peer]; }
  void allow(std::uint32_t peer, std::uint64_t limit) { limits_[peer] = limit; }

  /// Peers that must hear of a new credit limit, because they send for a ticket opened since; cleared by the call.
  void want_credit(std::uint32_t peer);
  std::vector<std::pair<std::uint32_t, std::uint64_t>> credit_limits();

  std::size_t pool() const { return pool_; }
  std::size_t used() const { return used_; }
  std::size_t peak() const { return peak_; }
  std::size_t waiting() const { return waiting_.size(); }  ///< tickets that have no memory yet
  /// What is left of the pool for tickets that have not begun; 0: some that have begun wait. An empty pool has some.
  std::size_t free_bytes() const {
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
  std::deque<Ticket> waiting_;
  std::vector<std::uint64_t> limits_;     // per peer: theirs, as they told us
  std::vector<std::uint64_t> announced_;  // per peer: ours, as we told them
  std::vector<std::uint32_t> dirty_;
};

}  // namespace casync
