#include "bindings/dispatcher.hpp"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <utility>

#include "executor/real/completing.hpp"

namespace casync {

void Dispatcher::hand_over(std::unique_ptr<Call> call) {
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      thread_ = std::thread([self = shared_from_this()] { self->work(); });
      pthread_setname_np(thread_.native_handle(), "casync-python");
    }
    queue_.push_back(std::move(call));
    if (queue_.size() > 1) return;  // the thread was woken for the first
  }
  changed_.notify_one();
}

void Dispatcher::stop() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    thread.swap(thread_);
  }
  changed_.notify_one();
  if (!thread.joinable()) return;
  if (thread.get_id() == std::this_thread::get_id()) return thread.detach();  // what it called was the session's end
  thread.join();
}

void Dispatcher::work() {
  std::vector<std::unique_ptr<Call>> calls;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    calls.swap(queue_);
    lock.unlock();
    {
      const pybind11::gil_scoped_acquire acquire;
      {
        const Completing here(nullptr);  // Python, too, is refused what would wait
        for (const auto& call : calls) call->run();
      }
      calls.clear();  // perhaps the last that knew the session
    }
    lock.lock();
  }
}

}  // namespace casync
