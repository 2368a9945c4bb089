#include "executor/real/worker_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <iterator>

namespace casync {

WorkerPool::WorkerPool(const char* name, int threads, std::function<void()> wake) : wake_(std::move(wake)) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { work(); });
    pthread_setname_np(threads_.back().native_handle(), name);
  }
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (auto& batch : std::exchange(queue_, {})) {
    for (auto& job : batch) finished_.emplace_back(std::move(job), "the session was shut down before its turn");
    has_finished_.store(true, std::memory_order_release);
  }
}

void WorkerPool::run(std::vector<std::unique_ptr<Job>> batch) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(batch));
  }
  changed_.notify_one();
}

void WorkerPool::collect(Finished& finished) {
  if (!has_finished_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  std::ranges::move(finished_, std::back_inserter(finished));
  finished_.clear();
  has_finished_.store(false, std::memory_order_relaxed);
}

void WorkerPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    auto batch = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    std::vector<std::string> errors;
    run_all(batch, errors);
    lock.lock();
    for (std::size_t i = 0; i < batch.size(); ++i) finished_.emplace_back(std::move(batch[i]), std::move(errors[i]));
    has_finished_.store(true, std::memory_order_release);
    lock.unlock();
    wake_();
    lock.lock();
  }
}

}  // namespace casync
