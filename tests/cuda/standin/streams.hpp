#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

/// Streams and events of the stand-in: a stream is a thread with a queue, an event counts.
namespace standin {

/// What an event has: how often it was recorded, and how many of these times have been reached.
class Event {
 public:
  /// A point that is reached when `reach` is called with it.
  std::uint64_t record() {
    const std::lock_guard lock(mutex_);
    return ++recorded_;
  }
  std::uint64_t recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }
  void reach(std::uint64_t point) {
    const std::lock_guard lock(mutex_);
    if (point > reached_) reached_ = point;
    changed_.notify_all();
  }
  /// As CUDA says it: of the last time; an event that was never recorded is over.
  bool is_over() {
    const std::lock_guard lock(mutex_);
    return reached_ >= recorded_;
  }
  void wait(std::uint64_t point) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= point; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  /// What was queued still runs.
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void queue(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }
  /// Until all that was queued before has run.
  void synchronize() {
    Event end;
    const std::uint64_t point = end.record();
    queue([&] { end.reach(point); });
    end.wait(point);
  }

  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return jobs_.empty() && !is_at_work_;
  }

  bool is_captured = false;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      is_at_work_ = true;
      lock.unlock();
      job();
      lock.lock();
      is_at_work_ = false;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool is_at_work_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace standin
