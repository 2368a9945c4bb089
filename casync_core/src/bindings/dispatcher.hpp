#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace casync {

/// Calls Python on a thread of its own: one for each session, from its first call on. Whoever makes progress leaves
/// here what Python is to be told, and never takes the GIL. `mutex_` guards all members; nothing is locked while it is
/// held.
class Dispatcher : public std::enable_shared_from_this<Dispatcher> {
 public:
  class Call {
   public:
    virtual ~Call() = default;
    /// With the GIL. Throws nothing, and waits for no operation.
    virtual void run() = 0;
  };

  /// Runs `call` after all that were handed over before, and destroys it with the GIL. Not after `stop`. Any thread.
  void hand_over(std::unique_ptr<Call> call);
  /// Returns when all was run; on the dispatcher's own thread at once. Once it was called, again does nothing. Without
  /// the GIL.
  void stop();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Call>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace casync
