#include "executor/real/real_executor.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>

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
constexpr Nanoseconds kForever = std::numeric_limits<Nanoseconds>::max();
constexpr int kYields = 20;  // polls with a yield between them before the first sleep
// A submit makes progress itself if nobody has for this long: a core that is busy with the backward pass may not give
// the background thread its turn for several ms.
constexpr Nanoseconds kStale = 50 * kMicrosecond;

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

void RealExecutor::push(Item item) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.push_back(std::move(item));
}

/// Wakes whoever sleeps in the transport, which a shutdown has not closed as long as the mutex is held.
void RealExecutor::ring() {
  const std::lock_guard lock(inbox_mutex_);
  if (!stop_) transport_->wake();
}

/// With the mutex in between, so that a thread which is about to park sees what has changed.
void RealExecutor::unpark() {
  {
    const std::lock_guard parked(parking_mutex_);
  }
  parking_.notify_one();
}

/// Wakes the background thread if it would sleep beyond `time`.
void RealExecutor::rouse(Nanoseconds time) {
  if (sleeps_until_.load() <= time) return;
  ring();
  unpark();
}

void RealExecutor::define(std::uint32_t registration, Request definition) {
  push({Item::Kind::define, registration, nullptr, std::move(definition), {}});
}

void RealExecutor::submit(std::uint32_t registration, Operation* operation) {
  push({Item::Kind::submit, registration, operation, {}, {}});
}

void RealExecutor::advance() {
  if (const std::unique_lock role(role_, std::try_to_lock); role.owns_lock()) {
    if (stop_) return;
    const bool stale = now() - last_turn_ >= kStale;
    if (stale) turn();
    rouse(now() + (stale ? pause(now()) : kStale));
  } else {
    ring();
    unpark();
  }
}

void RealExecutor::abort(std::string why) {
  push({Item::Kind::abort, 0, nullptr, {}, std::move(why)});
  ring();
  unpark();
}

bool RealExecutor::turn() {
  last_turn_ = now();
  driver_.set_time(last_turn_);
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
  if (transport_->moving()) return transport_->wakes() ? 50 * kMicrosecond : 100 * kMicrosecond;
  return std::clamp((time - last_news_) / 20, 20 * kMicrosecond, 5 * kMillisecond);
}

bool RealExecutor::wait(const Operation& operation, Nanoseconds timeout) {
  const auto done = [&] { return operation.done.load(std::memory_order_acquire); };
  if (done()) return true;
  const Nanoseconds deadline = now() + timeout;
  waiters_.fetch_add(1);
  ring();  // the background thread leaves its bed to this one
  {
    const std::lock_guard role(role_);
    std::unique_lock bed(bed_, std::defer_lock);
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
      } else if (!bed.owns_lock() && !bed.try_lock()) {
        // The background thread sleeps there. What rang it may have been meant for this one, so look once more.
        ring();
        bed.lock();
      } else {
        transport_->wait(std::min(pause(time), deadline - time));
      }
    }
  }
  waiters_.fetch_sub(1);
  // The background thread comes back at its leisure: most often the caller waits for the next operation at once.
  if (outstanding_.load()) rouse(now() + kMillisecond);
  return done();
}

void RealExecutor::background() {
  while (!stop_) {
    if (waiters_.load() > 0) {
      std::unique_lock parked(parking_mutex_);
      sleeps_until_ = kForever;  // before the look at what is outstanding: who submits does both the other way round
      const Nanoseconds time = outstanding_.load() ? kMillisecond : kParked;
      sleeps_until_ = now() + time;
      parking_.wait_for(parked, std::chrono::nanoseconds(time), [this] { return waiters_.load() == 0 || stop_; });
      sleeps_until_ = 0;
      continue;
    }
    std::unique_lock role(role_);
    if (turn()) continue;
    const Nanoseconds time = pause(now());
    const std::lock_guard bed(bed_);
    sleeps_until_ = now() + time;
    role.unlock();
    transport_->wait(time);
    sleeps_until_ = 0;
  }
}

void RealExecutor::inspect(const std::function<void(Driver&, const Engine&)>& read) {
  waiters_.fetch_add(1);
  {
    const std::lock_guard role(role_);
    read(driver_, *engine_);
  }
  waiters_.fetch_sub(1);
}

void RealExecutor::shutdown() {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (stop_.exchange(true)) return;
    transport_->wake();
  }
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
