#include "executor/real/real_executor.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "common/clock.hpp"
#include "progress/background.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kDrainTime = 1'000 * kMillisecond;                 // for what is under way at a shutdown
constexpr Nanoseconds kFlushTime = 2'000 * kMillisecond;                 // for its last messages
constexpr Nanoseconds kFarewellTime = 5'000 * kMillisecond;              // for the others to leave too
constexpr Nanoseconds kFarewellTimeAfterFailure = 1'000 * kMillisecond;  // one of them may never leave
constexpr Nanoseconds kLongestFollow = 3'600'000 * kMillisecond;         // the library's clock overflows beyond
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
      submit_policy_(transport_->size() == 1),
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
void RealExecutor::wake_background() {
  ring();
  {
    const std::lock_guard parked(parking_mutex_);
    woken_ = true;
  }
  parking_.notify_one();
}

/// Wakes the background thread if it would sleep beyond `time`: once, however long it then waits for a core.
void RealExecutor::wake_background(Nanoseconds time) {
  Nanoseconds sleep = sleeps_until_.load();
  if (sleep > time && sleeps_until_.compare_exchange_strong(sleep, 0)) wake_background();
}

void RealExecutor::add_stream(std::unique_ptr<CudaStream> stream, std::unique_ptr<DeviceLane> lane) {
  const std::lock_guard role(progress_mutex_);
  stream_ = std::move(stream);
  lane_ = std::move(lane);
  driver_.add_stream(*stream_, lane_.get());
}

void RealExecutor::define(std::uint32_t registration, Request definition) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.define(registration, std::move(definition));
}

void RealExecutor::forget(std::uint32_t registration, std::unique_ptr<Definition> definition) {
  const std::lock_guard lock(inbox_mutex_);
  inbox_.forget(registration, std::move(definition));
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
  has_ended_ = true;
  callbacks_.finished(operation);
}

/// Tells the program what turns have left, without a lock. Returns whether it has submitted something meanwhile.
bool RealExecutor::tell(const ToTell& now) {
  bool submitted = false;
  {
    const Completing here(this);
    for (const Stall& stall : now.stalls) attempt([&] { callbacks_.report(stall); });
    for (Operation* const operation : now.completed) attempt([&] { callbacks_.completed(*operation); });
    submitted = here.has_submitted();
  }
  if (telling_.fetch_sub(1) == 1) telling_.notify_all();
  if (waiters_.fetch_add(0) > 0) {  // one may wait for what a completion has just set
    ring();
    call();
  }
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

/// The background thread, or who waits in its place, takes a turn at once.
void RealExecutor::leave_turn() {
  rests_until_ = 0;
  wake_background();
}

void RealExecutor::advance(bool awaited) {
  if (Completing* const here = Completing::here()) {
    return here->driver() == this ? here->submitted() : leave_turn();
  }
  VisitorSteps steps(VisitorSteps::Kind::submits);
  Thread thread{.awaited = awaited};
  const auto never = [] { return false; };
  if (run(steps, thread, never) != Step::let_go) return;
  const auto go_on = [&] { run(steps, thread, never); };
  if (around_turn_) {
    around_turn_(go_on);
  } else {
    go_on();
  }
  run(steps, thread, never);
}

void RealExecutor::poll() {
  if (Completing::here() != nullptr) return;
  VisitorSteps steps(VisitorSteps::Kind::polls);
  Thread thread;
  run(steps, thread, [] { return false; });
}

void RealExecutor::abort(std::string why) {
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.abort(std::move(why));
  }
  wake_background();
}

Nanoseconds RealExecutor::sleep_time(Nanoseconds time) const {
  if (closed_) return kMillisecond;
  const Nanoseconds longest = driver_.sleep_time(time, last_news_);
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

/// Returns when nobody sleeps in the transport: none is to any more.
void RealExecutor::empty_transport() {
  while (in_transport_) {
    transport_->wake();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

/// From now on nobody sleeps there.
void RealExecutor::close_transport(bool failed) {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (closed_.exchange(true)) return;
  }
  empty_transport();
  if (lane_ != nullptr) lane_->close(failed ? kFarewellTimeAfterFailure : kFarewellTime);
  transport_->flush(kFlushTime);
  transport_->close(failed ? kFarewellTimeAfterFailure : kFarewellTime);
}

bool RealExecutor::turn_of_driver() {
  std::optional<CoreScope> scope;
  if (measures()) scope.emplace();
  if (std::exchange(leaves_, false) && !driver_.collapsed()) driver_.shutdown();
  const Nanoseconds time = now();
  looks_again_ = callbacks_.look();
  submit_policy_.taken(time);
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
  if (scope && news) driver_.turn_took(scope->worked());  // in the others it looked in vain, and had time for it
  measures_.store(driver_.measures(), std::memory_order_relaxed);
  return news;
}

bool RealExecutor::wait(const std::atomic<bool>& is_done, Nanoseconds timeout) {
  const auto done = [&] { return is_done.load(std::memory_order_acquire); };
  if (done()) return true;
  const Nanoseconds begun = now();
  Thread thread{.kind = Seat::waiter, .deadline = begun + timeout};
  waiters_.fetch_add(1);
  ring();  // the background thread leaves its seat to this one
  WaiterSteps steps;
  run(steps, thread, [&] { return done() || stop_ || thread.time >= thread.deadline; });
  waited_.fetch_add(now() - begun, std::memory_order_relaxed);
  return done();
}

/// Does what `steps` say, until the program's lock is in question, or to their end. `over`: whether what the thread
/// waits for is.
template <typename Steps, typename Over>
Step RealExecutor::run(Steps& steps, Thread& thread, const Over& over) {
  Seen& seen = thread.seen;
  for (;;) {
    seen.over = over();
    seen.seat = seat_.load();
    seen.waiters = waiters_.load();
    const Step step = steps.next(seen);
    switch (step) {
      case Step::let_go:
      case Step::regain:
      case Step::end:
        if (thread.owes_turn && thread.kind != Seat::background) leave_turn();
        return step;
      case Step::begin:
        break;
      case Step::try_role:
        thread.role = std::unique_lock(progress_mutex_, std::try_to_lock);
        seen.got = thread.role.owns_lock() && !stop_;
        if (!seen.got && thread.role.owns_lock()) thread.role.unlock();
        break;
      case Step::take_role:
        thread.role = std::unique_lock(progress_mutex_);
        break;
      case Step::leave_role:
        leave_role(thread);
        break;
      case Step::turn:
        take_turn(thread);
        break;
      case Step::ask:
        thread.time = now();
        thread.advice = submit_policy_.submitted(thread.time, large_ == 0, thread.awaited);
        seen.got = thread.advice.turn;
        break;
      case Step::arrange:
        rests_until_ = rests_after_submit(thread.advice, thread.time);
        wake_background(
            awake_after_submit(thread.advice, thread.time, thread.advice.turn ? sleep_time(thread.time) : 0));
        break;
      case Step::try_seat: {
        Seat vacant = Seat::vacant;
        seen.got = seat_.compare_exchange_strong(vacant, thread.kind);
        thread.is_seated = seen.got;
        break;
      }
      case Step::leave_seat:
        thread.is_seated = false;
        seat_ = Seat::vacant;
        call();
        break;
      case Step::sleep:
        sleep(thread);
        break;
      case Step::follow:
        follow(thread, over);
        break;
      case Step::yield:
        sched_yield();
        break;
      case Step::ring:
        ring();
        break;
      case Step::call:
        if (!thread.is_seated && seen.seat == Seat::waiter) ring();
        call();
        break;
      case Step::wake_background:
        wake_background();
        break;
      case Step::park:
        seen.got = park();
        break;
      case Step::release_progress:
        release_progress(rests_after_wait(now()));
        break;
      case Step::tell:
        thread.owes_turn = tell(std::exchange(thread.to_tell, {}));
        seen.to_tell = false;
        break;
    }
  }
}

/// With it the thread takes along what is to be told, and how long it may sleep.
void RealExecutor::leave_role(Thread& thread) {
  if (thread.is_seated) {
    const Nanoseconds time = now();
    thread.awake = time + sleep_time(time);
    if (thread.kind == Seat::background) sleeps_until_ = thread.awake;
  }
  if (!to_tell_.empty()) {
    thread.to_tell = std::exchange(to_tell_, {});
    telling_.fetch_add(1);
  }
  thread.role.unlock();
}

void RealExecutor::take_turn(Thread& thread) {
  thread.owes_turn = false;
  has_ended_ = false;
  thread.seen.news = turn();
  thread.seen.ended = has_ended_;
  thread.seen.to_tell = !to_tell_.empty();
  // Who waits says so before it looks whether its operation is over, and what is over says so before this look.
  if (has_ended_) waiters_.fetch_add(0);
  thread.time = now();
}

void RealExecutor::sleep(Thread& thread) {
  const Nanoseconds time = now();
  const Nanoseconds until = std::min(thread.awake, thread.deadline);
  in_transport_ = true;  // before the look at what closes the transport: that does them the other way round
  if (stop_ || closed_) {
    in_transport_ = false;
    if (!stop_)
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::clamp(until - time, Nanoseconds{0}, kMillisecond)));
  } else {
    if (until > time) transport_->wait(until - time);
    in_transport_ = false;
  }
  if (thread.kind == Seat::background) sleeps_until_ = 0;
  thread.time = now();
}

/// Sleeps until another thread calls, as long as one is in the seat.
template <typename Over>
void RealExecutor::follow(Thread& thread, const Over& over) {
  {
    std::unique_lock lock(company_mutex_);
    followers_.fetch_add(1);  // before the looks: who ends something, or leaves the seat, does that first
    const std::uint64_t calls = calls_;
    if (seat_ != Seat::vacant && !over()) {
      const auto time = std::chrono::nanoseconds(std::min(thread.deadline - now(), kLongestFollow));
      company_.wait_for(lock, time, [&] { return calls_ != calls; });
    }
    followers_.fetch_sub(1);
  }
  thread.time = now();
}

/// Who follows looks again.
void RealExecutor::call() {
  if (followers_.fetch_add(0) == 0) return;
  {
    const std::lock_guard lock(company_mutex_);
    ++calls_;
  }
  company_.notify_all();
}

/// The caller, one of `waiters_`, leaves progress to the background thread, which rests until `time`.
void RealExecutor::release_progress(Nanoseconds time) {
  waiters_.fetch_sub(1);
  rests_until_ = time;
  wake_background(time);
}

/// Of the background thread: sleeps as long as other threads make progress. Returns whether they did.
bool RealExecutor::park() {
  std::unique_lock parked(parking_mutex_);
  sleeps_until_ = kForever;  // before the looks at what others announce: they do both the other way round
  const Nanoseconds time = now();
  const auto until = parked_until(time, waiters_.load(), rests_until_.load());
  if (until) {
    sleeps_until_ = *until;
    parking_.wait_for(parked, std::chrono::nanoseconds(*until - time), [this] { return woken_ || stop_; });
  }
  woken_ = false;
  sleeps_until_ = 0;
  return until.has_value();
}

void RealExecutor::background() {
  while (!stop_) {
    BackgroundSteps steps;
    Thread thread{.kind = Seat::background};
    run(steps, thread, [] { return false; });
    if (thread.owes_turn) rests_until_ = 0;
  }
}

void RealExecutor::inspect(const std::function<void(Driver&, const Engine&)>& read) {
  struct Leaving {
    RealExecutor& of;
    ~Leaving() { of.release_progress(of.now()); }
  };
  waiters_.fetch_add(1);
  Thread thread;
  thread.role = std::unique_lock(progress_mutex_);
  {
    const Leaving leaving{*this};
    has_ended_ = false;
    read(driver_, *engine_);
    const bool has_ended = has_ended_;
    leave_role(thread);
    if (has_ended) {
      ring();
      call();
    }
  }
  if (!thread.to_tell.empty() && tell(thread.to_tell)) leave_turn();
}

void RealExecutor::shutdown() {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (stop_.exchange(true)) return;
    if (!closed_) transport_->wake();
  }
  wake_background();
  call();
  thread_.join();
  Thread thread;
  thread.role = std::unique_lock(progress_mutex_);
  if (!closed_) empty_transport();
  const Nanoseconds deadline = now() + kDrainTime;
  turn();
  // What has begun ends by itself as long as all ranks stay: nobody gave it up but the caller here.
  while (engine_->under_way() && now() < deadline) {
    if (!to_tell_.empty()) {
      leave_role(thread);
      tell(std::exchange(thread.to_tell, {}));
      thread.role.lock();
    }
    if (!turn() && !closed_) transport_->wait(sleep_time(now()));
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
  leave_role(thread);
  if (!thread.to_tell.empty()) tell(thread.to_tell);
  while (const int telling = telling_.load()) telling_.wait(telling);
}

}  // namespace casync
