#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/run/workers.hpp"

namespace casync {

/// Threads that run batches of jobs in the order given, and keep what is finished until the progress thread collects
/// it. `mutex_` guards the queues and `stop_`; no other lock is taken while it is held, and jobs run without it.
class WorkerPool final : public Workers {
 public:
  /// `name` is that of the threads. `wake` is called by a worker after a batch, to wake the progress thread.
  WorkerPool(const char* name, int threads, std::function<void()> wake);
  ~WorkerPool() override;
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Ends the threads after the batch each is at; what is still queued comes back undone, with a text. Nothing calls
  /// `wake` afterwards. Idempotent.
  void stop();

  void run(std::vector<std::unique_ptr<Job>> batch) override;
  /// Moves all finished jobs to the end of `finished`. Costs next to nothing where there are none.
  void collect(Finished& finished);

 private:
  void work();

  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<std::unique_ptr<Job>>> queue_;
  Finished finished_;
  std::atomic<bool> has_finished_ = false;  // written under the lock
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace casync
