#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "casync/types.hpp"
#include "transport/doorbell.hpp"

/// Who of this host is to be rung for what a call has left for it.
namespace casync::transport::host {

/// One thread. A ring may be a system call, so each peer is rung once, when the outermost call ends.
class Rings {
 public:
  using Ring = std::function<void(Rank peer, DoorbellCell& bell)>;

  /// Per peer its doorbell, or null if a ring cannot reach it. `ring` is how one is rung.
  explicit Rings(
      std::vector<DoorbellCell*> bells, Ring how = [](Rank, DoorbellCell& bell) { ring(bell); })
      : bells_(std::move(bells)), how_(std::move(how)), marked_(bells_.size(), false) {}

  /// There is something for `peer`. Only while a Call lives.
  void mark(Rank peer) {
    if (bells_[peer] == nullptr || marked_[peer]) return;
    marked_[peer] = true;
    waiting_.push_back(peer);
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
    for (const Rank peer : waiting_) {
      marked_[peer] = false;
      how_(peer, *bells_[peer]);
    }
    waiting_.clear();
  }

  std::vector<DoorbellCell*> bells_;
  Ring how_;
  std::vector<bool> marked_;
  std::vector<Rank> waiting_;
  int depth_ = 0;
};

}  // namespace casync::transport::host
