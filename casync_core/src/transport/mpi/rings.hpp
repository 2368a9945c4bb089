#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "casync/types.hpp"
#include "transport/doorbell.hpp"

/// Who of this host is to be rung for what a call has left for it.
namespace casync::transport::mpi {

/// One thread. A ring may be a system call, so each peer is rung once, when the outermost call ends.
class Rings {
 public:
  /// Per peer its doorbell, or null if a ring cannot reach it.
  explicit Rings(std::vector<DoorbellCell*> bells) : bells_(std::move(bells)), marked_(bells_.size(), false) {}

  /// There is something for `peer`. Only while a Call lives.
  void mark(Rank peer) {
    const auto index = peer;
    if (bells_[index] == nullptr || marked_[index]) return;
    marked_[index] = true;
    waiting_.push_back(index);
  }

  /// A call, and those that its callbacks make; however it ends.
  class Call {
   public:
    explicit Call(Rings& rings) : rings_(rings) { ++rings_.depth_; }
    ~Call() {
      if (--rings_.depth_ == 0) rings_.ring_marked();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Rings& rings_;
  };

 private:
  void ring_marked() {
    for (const std::size_t index : waiting_) {
      marked_[index] = false;
      ring(*bells_[index]);
    }
    waiting_.clear();
  }

  std::vector<DoorbellCell*> bells_;
  std::vector<bool> marked_;
  std::vector<std::size_t> waiting_;
  int depth_ = 0;
};

}  // namespace casync::transport::mpi
