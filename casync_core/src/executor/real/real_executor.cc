#include "executor/real/real_executor.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

namespace casync {
namespace {

Nanoseconds steady() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kDrainTime = 1'000 * kMillisecond;  // for what is under way at a shutdown
constexpr Nanoseconds kFlushTime = 2'000 * kMillisecond;  // for its last messages
constexpr Nanoseconds kParked = 20 * kMillisecond;        // between looks at what nobody announces
constexpr int kYields = 20;                               // polls with a yield between them before the first sleep

}  // namespace

RealExecutor::RealExecutor(std::unique_ptr<Engine> engine, std::shared_ptr<Transport> transport, Options options,
                           std::function<void(const std::string&)> report)
    : engine_(std::move(engine)),
      transport_(std::move(transport)),
      workers_(options.worker_threads, [this] { transport_->wake(); }),
      driver_(*engine_, *transport_, workers_, options.driver,
              {.finished = [](Operation& operation) { operation.done.store(true, std::memory_order_release); },
               .report = std::move(report)}),
      start_(steady()),
      thread_([this] { background(); }) {
  pthread_setname_np(thread_.native_handle(), "casync-progress");
}

RealExecutor::~RealExecutor() { shutdown(); }

Nanoseconds RealExecutor::now() const { return steady() - start_; }

void RealExecutor::push(Item item, bool wake) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(item));
  }
  if (!wake || stop_) return;
  transport_->wake();
  unpark();
}

/// With the mutex in between, so that a thread which is about to park sees what has changed.
void RealExecutor::unpark() {
  {
    const std::lock_guard parked(parking_mutex_);
  }
  parking_.notify_one();
}

void RealExecutor::define(std::uint32_t registration, Request definition) {
  push({Item::Kind::define, registration, nullptr, std::move(definition), {}}, false);
}

void RealExecutor::submit(std::uint32_t registration, Operation* operation, bool wake) {
  push({Item::Kind::submit, registration, operation, {}, {}}, wake);
}

void RealExecutor::abort(std::string why) { push({Item::Kind::abort, 0, nullptr, {}, std::move(why)}, true); }

bool RealExecutor::turn() {
  driver_.set_time(now());
  taken_.clear();
  {
    const std::lock_guard lock(inbox_mutex_);
    taken_.swap(inbox_);
  }
  for (Item& item : taken_) {
    switch (item.kind) {
      case Item::Kind::define:
        driver_.define(item.registration, item.definition);
        break;
      case Item::Kind::submit:
        driver_.submit(item.registration, item.operation);
        break;
      case Item::Kind::abort:
        driver_.abort(item.text);
        break;
    }
  }
  finished_.clear();
  workers_.collect(finished_);
  for (auto& [job, error] : finished_) driver_.finished(std::move(job), std::move(error));
  const bool busy = driver_.turn(now());
  outstanding_.store(engine_->outstanding());
  const bool news = busy || !taken_.empty() || !finished_.empty();
  if (news) last_news_ = now();
  return news;
}

/// How long to sleep where the last turn brought nothing (DESIGN: progress has three states).
Nanoseconds RealExecutor::pause(Nanoseconds time) const {
  if (engine_->waits_for_time()) return 200 * kMicrosecond;
  if (!engine_->outstanding()) return transport_->wakes() ? 100 * kMillisecond : kParked;
  if (transport_->moving()) return transport_->wakes() ? 50 * kMicrosecond : 200 * kMicrosecond;
  return std::clamp((time - last_news_) / 20, 20 * kMicrosecond, 5 * kMillisecond);
}

bool RealExecutor::wait(const Operation& operation, Nanoseconds timeout) {
  const auto done = [&] { return operation.done.load(std::memory_order_acquire); };
  if (done()) return true;
  const Nanoseconds deadline = now() + timeout;
  waiters_.fetch_add(1);
  if (!stop_) transport_->wake();  // the background thread gives up the role
  {
    const std::lock_guard role(role_);
    int yields = 0;
    while (!done() && !stop_) {
      const bool news = turn();
      const Nanoseconds time = now();
      if (done() || time >= deadline) break;
      if (news) {
        yields = 0;
      } else if (yields < kYields) {
        ++yields;
        sched_yield();
      } else {
        transport_->wait(std::min(pause(time), deadline - time));
      }
    }
  }
  // The background thread comes back at its leisure: most often the caller waits for the next operation at once.
  waiters_.fetch_sub(1);
  return done();
}

void RealExecutor::background() {
  while (!stop_) {
    if (waiters_.load() > 0) {
      std::unique_lock parked(parking_mutex_);
      parking_.wait_for(parked, std::chrono::nanoseconds(outstanding_.load() ? kMillisecond : kParked),
                        [this] { return waiters_.load() == 0 || stop_; });
      continue;
    }
    const std::lock_guard role(role_);
    if (!turn()) transport_->wait(pause(now()));
  }
}

void RealExecutor::inspect(const std::function<void(Driver&, const Engine&)>& read) {
  waiters_.fetch_add(1);
  if (!stop_) transport_->wake();
  {
    const std::lock_guard role(role_);
    read(driver_, *engine_);
  }
  waiters_.fetch_sub(1);
}

void RealExecutor::shutdown() {
  if (stop_.exchange(true)) return;
  transport_->wake();
  unpark();
  thread_.join();
  const std::lock_guard role(role_);
  const Nanoseconds deadline = now() + kDrainTime;
  turn();
  // What has begun ends by itself as long as all ranks stay: nobody gave it up but the caller here.
  while (engine_->under_way() && now() < deadline) {
    if (!turn()) transport_->wait(pause(now()));
  }
  driver_.shutdown();
  turn();
  // A job may still write the user's memory, and wakes the transport when it ends: neither outlives this call. Its
  // operation ends with it.
  workers_.stop();
  turn();
  transport_->flush(kFlushTime);
  transport_->close();
}

}  // namespace casync
