#include "executor/real/real_executor.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "common/clock.hpp"
#include "progress/background.hpp"
#include "progress/waiting.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kDrainTime = 1'000 * kMillisecond;                 // for what is under way at a shutdown
constexpr Nanoseconds kFlushTime = 2'000 * kMillisecond;                 // for its last messages
constexpr Nanoseconds kFarewellTime = 5'000 * kMillisecond;              // for the others to leave too
constexpr Nanoseconds kFarewellTimeAfterFailure = 1'000 * kMillisecond;  // one of them may never leave
constexpr Nanoseconds kForever = std::numeric_limits<Nanoseconds>::max();

}  // namespace

RealExecutor::RealExecutor(std::unique_ptr<Engine> engine, std::shared_ptr<Transport> transport,
                           std::unique_ptr<Planning> planning, Options options, Callbacks callbacks)
    : engine_(std::move(engine)),
      transport_(std::move(transport)),
      planning_(std::move(planning)),
      workers_("casync-worker", options.worker_threads, [this] { transport_->wake(); }),
      planner_("casync-planner", transport_->rank() == 0 && transport_->size() > 1 ? 1 : 0,
               [this] { transport_->wake(); }),
      small_bytes_(engine_->inline_bytes()),
      around_turn_(std::move(options.around_turn)),
      callbacks_(std::move(callbacks)),
      driver_(*engine_, *transport_, {workers_, &planner_}, *planning_, options.driver,
              {.finished = [this](Operation& operation) { finish(operation); },
               .report = [this](const Stall& stall) { to_tell_.stalls.push_back(stall); },
               .stand_in = callbacks_.stand_in}),
      intake_(transport_->size() == 1),
      start_(steady_now()),
      thread_([this] { background(); }) {
  pthread_setname_np(thread_.native_handle(), "casync-progress");
}

RealExecutor::~RealExecutor() { shutdown(); }

Nanoseconds RealExecutor::now() const { return steady_now() - start_; }

/// Wakes whoever sleeps in the transport, which a shutdown has not closed as long as the mutex is held.
void RealExecutor::ring() {
  const std::lock_guard lock(inbox_mutex_);
  if (!stop_ && !closed_) transport_->wake();
}

/// Wakes the background thread wherever it sleeps, or keeps it from going to sleep.
void RealExecutor::rouse() {
  ring();
  {
    const std::lock_guard parked(parking_mutex_);
    roused_ = true;
  }
  parking_.notify_one();
}

/// Wakes the background thread if it would sleep beyond `time`: once, however long it then waits for a core.
void RealExecutor::rouse(Nanoseconds time) {
  Nanoseconds sleep = sleeps_until_.load();
  if (sleep > time && sleeps_until_.compare_exchange_strong(sleep, 0)) rouse();
}

void RealExecutor::add_stream(std::unique_ptr<CudaStream> stream, std::unique_ptr<DeviceLane> lane) {
  const std::lock_guard role(role_);
  stream_ = std::move(stream);
  lane_ = std::move(lane);
  driver_.add_stream(*stream_, lane_.get());
}

void RealExecutor::define(std::uint32_t registration, Request definition) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.define(registration, std::move(definition));
}

bool RealExecutor::small(const Operation& operation) const {
  const Signature& signature = operation.definition->signature;
  const std::size_t bytes = static_cast<std::size_t>(signature.shape.numel()) * size_of(signature.dtype);
  return operation.awaited && is_small(signature.kind, bytes, small_bytes_);
}

void RealExecutor::submit(std::uint32_t registration, Operation* operation) {
  if (!small(*operation)) ++large_;
  const std::lock_guard lock(inbox_mutex_);
  inbox_.submit(registration, operation);
}

void RealExecutor::finish(Operation& operation) {
  if (!small(operation)) --large_;
  callbacks_.finished(operation);
}

/// Lets go of the role, and of nothing else: tells the program what the last turns have left. Returns whether it has
/// submitted something meanwhile.
bool RealExecutor::tell(std::unique_lock<std::mutex>& role) {
  const ToTell now = std::exchange(to_tell_, {});
  telling_.fetch_add(1);
  role.unlock();
  bool submitted = false;
  {
    const Completing here(this);
    for (const Stall& stall : now.stalls) attempt([&] { callbacks_.report(stall); });
    for (Operation* const operation : now.completed) attempt([&] { callbacks_.completed(*operation); });
    submitted = here.has_submitted();
  }
  if (telling_.fetch_sub(1) == 1) telling_.notify_all();
  if (waiters_.load() > 0) ring();  // one may wait for what a completion has just set
  return submitted;
}

/// `work()`, a call of the program: what that throws ends the session.
template <typename Work>
void RealExecutor::attempt(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    abort(detail::concat("a completion, or the log, has thrown: ", error.what()));
  } catch (...) {
    abort("a completion, or the log, has thrown something that is no std::exception");
  }
}

/// `tell`, if there is anything, by a thread that takes no turn afterwards.
void RealExecutor::tell_and_leave(std::unique_lock<std::mutex>& role) {
  if (!to_tell_.empty() && tell(role)) leave_turn();
}

/// The background thread, or who waits in its place, takes a turn at once.
void RealExecutor::leave_turn() {
  rests_until_ = 0;
  rouse();
}

void RealExecutor::advance(bool awaited) {
  if (Completing* const here = Completing::here()) {
    return here->driver() == this ? here->submitted() : leave_turn();
  }
  Intake::Advice advice;
  {
    const std::unique_lock role(role_, std::try_to_lock);
    if (!role.owns_lock()) return rouse();
    if (stop_) return;
    const Nanoseconds time = now();
    advice = intake_.submitted(time, large_ == 0, awaited);
    if (!advice.turn) {
      rests_until_ = rests_after_submit(advice, time);
      rouse(awake_after_submit(advice, time, 0));
      return;
    }
  }
  // Whoever lets go of an interpreter's lock waits for it afterwards: that must not be with the role.
  if (around_turn_) {
    around_turn_([&] { take_turn(advice); });
  } else {
    take_turn(advice);
  }
}

/// The turn of a thread that submits. Without a lock, before and afterwards.
void RealExecutor::take_turn(const Intake::Advice& advice) {
  std::unique_lock role(role_, std::try_to_lock);
  if (!role.owns_lock()) return rouse();
  if (stop_) return;
  turn();
  const Nanoseconds time = now();
  rests_until_ = rests_after_submit(advice, time);
  rouse(awake_after_submit(advice, time, nap(time)));
  tell_and_leave(role);
}

void RealExecutor::poll() {
  if (Completing::here() != nullptr) return;
  std::unique_lock role(role_, std::try_to_lock);
  if (!role.owns_lock() || stop_) return;
  turn();
  tell_and_leave(role);
}

void RealExecutor::abort(std::string why) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.abort(std::move(why));
  }
  rouse();
}

Nanoseconds RealExecutor::nap(Nanoseconds time) const {
  if (closed_) return kMillisecond;
  const Nanoseconds longest = driver_.nap(time, last_news_);
  return looks_again_ ? std::min(longest, *looks_again_) : longest;
}

/// Throws nothing.
bool RealExecutor::turn() {
  try {
    return turn_of_driver();
  } catch (const std::exception& error) {
    collapse(error.what());
  } catch (...) {
    collapse("something was thrown that is no std::exception");
  }
  return true;
}

/// The session cannot be ended in good order. It ends all the same, and so does whatever is submitted from now on.
void RealExecutor::collapse(const std::string& why) {
  const auto stop = [this] {
    workers_.stop();
    planner_.stop();
    if (stream_ != nullptr) stream_->quiesce();
    close_transport(true);
  };
  driver_.collapse(why, taken_, stop);
}

/// From now on nobody sleeps there.
void RealExecutor::close_transport(bool failed) {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (closed_.exchange(true)) return;
  }
  if (lane_ != nullptr) lane_->close(failed ? kFarewellTimeAfterFailure : kFarewellTime);
  transport_->flush(kFlushTime);
  transport_->close(failed ? kFarewellTimeAfterFailure : kFarewellTime);
}

void RealExecutor::sleep(Nanoseconds time) {
  if (closed_) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(time));
  } else {
    transport_->wait(time);
  }
}

bool RealExecutor::turn_of_driver() {
  if (std::exchange(leaves_, false) && !driver_.collapsed()) driver_.shutdown();
  const Nanoseconds time = now();
  looks_again_ = callbacks_.look();
  intake_.taken(time);
  {
    const std::lock_guard lock(inbox_mutex_);
    taken_.items.swap(inbox_.items);
  }
  workers_.collect(taken_.jobs);
  planner_.collect(taken_.jobs);
  if (stream_ != nullptr) {
    const auto again = stream_->collect(taken_.jobs);
    if (again) looks_again_ = std::min(looks_again_.value_or(*again), *again);
  }
  const bool news = driver_.turn(taken_, time);
  if (news) last_news_ = now();
  return news;
}

bool RealExecutor::wait(const std::atomic<bool>& is_done, Nanoseconds timeout) {
  const auto done = [&] { return is_done.load(std::memory_order_acquire); };
  if (done()) return true;
  const Nanoseconds begun = now();
  const Nanoseconds deadline = begun + timeout;
  waiters_.fetch_add(1);
  ring();                  // the background thread leaves its bed to this one
  bool owes_turn = false;  // for what completions have submitted
  std::unique_lock role(role_);
  {
    std::unique_lock bed(bed_, std::defer_lock);
    Waiting waiting;
    while (!done() && !stop_) {
      if (!role.owns_lock()) role.lock();
      owes_turn = false;
      const bool news = turn();
      const Nanoseconds time = now();
      if (done() || time >= deadline) break;
      if (!to_tell_.empty()) {
        if (bed.owns_lock()) bed.unlock();
        owes_turn = tell(role);
        continue;
      }
      switch (waiting.after(news)) {
        case Waiting::Next::turn:
          break;
        case Waiting::Next::yield:
          sched_yield();
          break;
        case Waiting::Next::sleep:
          if (!bed.owns_lock() && !bed.try_lock()) {
            // The background thread sleeps there. What rang it may have been meant for this one, so look once more.
            ring();
            bed.lock();
          } else {
            sleep(std::min(nap(time), deadline - time));
          }
          break;
      }
    }
  }
  if (role.owns_lock() && to_tell_.empty()) role.unlock();
  const Nanoseconds ended = now();
  waited_.fetch_add(ended - begun, std::memory_order_relaxed);
  hand_back(rests_after_wait(ended));
  if (role.owns_lock()) owes_turn = tell(role);
  if (owes_turn) leave_turn();
  return done();
}

/// The caller, one of `waiters_`, leaves progress to the background thread, which rests until `time`.
void RealExecutor::hand_back(Nanoseconds time) {
  waiters_.fetch_sub(1);
  rests_until_ = time;
  rouse(time);
}

/// Of the background thread: sleeps as long as other threads make progress. Returns whether they did.
bool RealExecutor::park() {
  std::unique_lock parked(parking_mutex_);
  sleeps_until_ = kForever;  // before the looks at what others announce: they do both the other way round
  const Nanoseconds time = now();
  const auto until = parked_until(time, waiters_.load(), rests_until_.load());
  if (until) {
    sleeps_until_ = *until;
    parking_.wait_for(parked, std::chrono::nanoseconds(*until - time), [this] { return roused_ || stop_; });
  }
  roused_ = false;
  sleeps_until_ = 0;
  return until.has_value();
}

void RealExecutor::background() {
  while (!stop_) {
    if (park()) continue;
    std::unique_lock role(role_);
    const bool news = turn();
    if (!to_tell_.empty()) tell(role);
    if (news || !role.owns_lock()) continue;
    const Nanoseconds longest = nap(now());
    const std::lock_guard bed(bed_);
    sleeps_until_ = now() + longest;
    role.unlock();
    sleep(longest);
    sleeps_until_ = 0;
  }
}

void RealExecutor::inspect(const std::function<void(Driver&, const Engine&)>& read) {
  struct Leaving {
    RealExecutor& of;
    ~Leaving() { of.hand_back(of.now()); }
  };
  waiters_.fetch_add(1);
  std::unique_lock role(role_);
  {
    const Leaving leaving{*this};
    read(driver_, *engine_);
  }
  tell_and_leave(role);
}

void RealExecutor::shutdown() {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (stop_.exchange(true)) return;
    if (!closed_) transport_->wake();
  }
  rouse();
  thread_.join();
  std::unique_lock role(role_);
  const Nanoseconds deadline = now() + kDrainTime;
  turn();
  // What has begun ends by itself as long as all ranks stay: nobody gave it up but the caller here.
  while (engine_->under_way() && now() < deadline) {
    if (!to_tell_.empty()) {
      tell(role);
      role.lock();
    }
    if (!turn()) sleep(nap(now()));
  }
  if (stream_ != nullptr) {
    stream_->quiesce();
    if (!stream_->failure().empty()) turn();  // the session ends with that, and not with the shutdown
  }
  const bool failed = engine_->failed();
  leaves_ = true;
  turn();
  // A job may still write the user's memory, and wakes the transport when it ends: neither outlives this call. Its
  // operation ends with it.
  workers_.stop();
  planner_.stop();
  turn();
  close_transport(failed);
  // Nothing touches the memory of what failed any more, so its completions may have it.
  if (to_tell_.empty()) {
    role.unlock();
  } else {
    tell(role);
  }
  while (const int telling = telling_.load()) telling_.wait(telling);
}

}  // namespace casync
