#pragma once

namespace casync {

/// What a thread that waits for an operation does after a turn. Pure. Between turns without news it lets other threads
/// run before it goes to sleep: the answer of a peer on this host is often there sooner than a sleeper is awake.
class Waiting {
 public:
  enum class Next { turn, yield, sleep };
  static constexpr int kYields = 20;  ///< before the first sleep

  Next after(bool news) {
    if (news) {
      yields_ = 0;
      return Next::turn;
    }
    if (yields_ == kYields) return Next::sleep;
    ++yields_;
    return Next::yield;
  }

 private:
  int yields_ = 0;
};

}  // namespace casync
