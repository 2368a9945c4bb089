#include "executor/virtual/threads.hpp"

#include <algorithm>
#include <utility>

#include "progress/background.hpp"

namespace casync {

void VirtualThreads::Delays::take_longer(const Delays& other) {
  told = std::max(told, other.told);
  silent = std::max(silent, other.silent);
  due = std::max(due, other.due);
  done = std::max(done, other.done);
}

VirtualThreads::VirtualThreads(Agenda& agenda, Nanoseconds notice, bool alone, std::size_t waiters, Callbacks callbacks)
    : agenda_(agenda), notice_(notice), callbacks_(std::move(callbacks)), submit_policy_(alone), threads_(1 + waiters) {
  start(kBackground);
}

// ---------------------------------------------------------------------------------------------------------------------
// What happens to the rank

void VirtualThreads::program(std::function<void()> what) {
  program_.push_back(std::move(what));
  go_on_with_program();
}

void VirtualThreads::go_on_with_program() {
  while (!program_.empty() && !is_busy() && !stopped_) {
    const std::function<void()> what = std::move(program_.front());
    program_.pop_front();
    what();
  }
}

bool VirtualThreads::is_busy() const {
  return std::any_of(threads_.begin() + kMain, threads_.end(),
                     [](const Thread& thread) { return thread.where != Where::idle; });
}

void VirtualThreads::submitted(bool only_small) {
  told();
  only_small_ = only_small;
  threads_[kMain].steps = VisitorSteps(VisitorSteps::Kind::submits);
  start(kMain);
}

/// After the submit, if that is not over yet.
void VirtualThreads::waits(std::size_t waiter) {
  const auto who = static_cast<std::uint32_t>(kMain + waiter);
  if (who == kMain && threads_[who].where != Where::idle) {
    main_waits_ = true;  // it is at its last submit
    return;
  }
  threads_[who].steps = WaiterSteps();
  if (threads_[who].over_since) threads_[who].over_since = agenda_.now();  // before it waits it cannot see that
  ++waiters_;
  if (who == kMain) release_lock();
  ring();
  start(who);
}

void VirtualThreads::is_done(std::size_t waiter) {
  threads_[kMain + waiter].over_since = agenda_.now();
  ended_ = true;
}

void VirtualThreads::hold(Nanoseconds time) {
  hold_ = time;
  if (lock_ == kNobody) release_lock();
}

void VirtualThreads::rung() {
  told();
  ring();
}

void VirtualThreads::came_silently() {
  if (!silent_since_) silent_since_ = agenda_.now();
}

void VirtualThreads::wake_background() {
  rung();
  woken_ = true;
  if (threads_[kBackground].where == Where::parked) wake(kBackground);
}

void VirtualThreads::stop() { stopped_ = true; }

void VirtualThreads::go_on() {
  stopped_ = false;
  went_on_ = agenda_.now();
  told_since_.reset();
  silent_since_.reset();
  for (std::uint32_t who = 0; who < threads_.size(); ++who) {
    const Where where = threads_[who].where;
    if (threads_[who].over_since) threads_[who].over_since = agenda_.now();
    if (where == Where::running || where == Where::transport || where == Where::parked) start(who);
  }
  if (lock_ == kHolder) agenda_.at(agenda_.now(), *this, kHolder, 0);
  go_on_with_program();
}

// ---------------------------------------------------------------------------------------------------------------------
// The threads

void VirtualThreads::sleep(std::uint32_t who, Where where, Nanoseconds until) {
  threads_[who].where = where;
  threads_[who].until = until;
  agenda_.at(until, *this, who, ++threads_[who].sleeps);
}

void VirtualThreads::start(std::uint32_t who) { sleep(who, Where::running, agenda_.now()); }

void VirtualThreads::wake(std::uint32_t who) {
  if (threads_[who].where == Where::running) return;
  sleep(who, Where::running, agenda_.now() + agenda_.up_to(notice_));
}

void VirtualThreads::happen(std::uint32_t who, std::uint64_t sleep) {
  if (stopped_) return;
  if (who == kHolder) {
    if (lock_ != kHolder) return;
    lock_ = kNobody;
    return release_lock();
  }
  if (sleep != threads_[who].sleeps) return;
  threads_[who].where = Where::running;
  if (!std::exchange(threads_[who].is_through, false)) return run(who);
  become_free(who);
}

void VirtualThreads::become_free(std::uint32_t who) {
  threads_[who].where = Where::idle;
  if (who == kMain && std::exchange(main_waits_, false)) return waits(0);
  go_on_with_program();
}

void VirtualThreads::run(std::uint32_t who) {
  Thread& thread = threads_[who];
  for (;;) {
    thread.seen.over = thread.over_since.has_value();
    thread.seen.seat = seat_;
    thread.seen.waiters = waiters_;
    const Step step = std::visit([&](auto& steps) { return steps.next(thread.seen); }, thread.steps);
    if (step == Step::end && who != kBackground) return end(who);
    if (step == Step::end) {
      thread.steps = BackgroundSteps();
    } else if (!take(who, step)) {
      return;
    }
  }
}

bool VirtualThreads::block(Thread& thread, Where where) {
  thread.where = where;
  return false;
}

/// Returns whether the thread goes on at once.
bool VirtualThreads::take(std::uint32_t who, Step step) {
  Thread& thread = threads_[who];
  const Nanoseconds now = agenda_.now();
  switch (step) {
    case Step::begin:
    case Step::end:
    case Step::tell:
      return true;
    case Step::let_go:
      release_lock();
      return true;
    case Step::regain:
      if (lock_ == kHolder) return block(thread, Where::for_lock);
      lock_ = kMain;
      return true;
    case Step::try_role:
      thread.seen.got = role_ == kNobody;
      if (thread.seen.got) role_ = who;
      return true;
    case Step::take_role:
      if (role_ == kNobody) role_ = who;
      if (role_ == who) return true;
      for_role_.push_back(who);
      return block(thread, Where::for_role);
    case Step::leave_role:
      leave_role(who);
      return true;
    case Step::turn:
      ended_ = false;
      thread.seen.news = turn();
      thread.seen.ended = ended_;
      sleep(who, Where::running, now + agenda_.up_to(notice_));
      return false;
    case Step::ask:
      thread.advice = submit_policy_.submitted(now, only_small_);
      thread.seen.got = thread.advice.turn;
      return true;
    case Step::arrange:
      rests_until_ = rests_after_submit(thread.advice, now);
      awake_by(awake_after_submit(thread.advice, now, callbacks_.sleep_time(last_news_)));
      return true;
    case Step::try_seat:
      thread.seen.got = seat_ == Seat::vacant;
      if (!thread.seen.got) return true;
      seat_ = who == kBackground ? Seat::background : Seat::waiter;
      seated_ = who;
      return true;
    case Step::leave_seat:
      seat_ = Seat::vacant;
      seated_ = kNobody;
      call();
      return true;
    case Step::sleep:
      sleep(who, Where::transport, std::exchange(rung_, false) ? now : thread.awake);
      return false;
    case Step::follow:
      return seat_ == Seat::vacant || thread.over_since || block(thread, Where::following);
    case Step::yield:
      start(who);
      return false;
    case Step::ring:
      ring();
      return true;
    case Step::call:
      if (seat_ == Seat::waiter && seated_ != who) ring();
      call();
      return true;
    case Step::wake_background:
      wake_background();
      return true;
    case Step::park: {
      const auto until = parked_until(now, waiters_, rests_until_);
      thread.seen.got = until.has_value();
      if (std::exchange(woken_, false) || !until) return true;
      sleep(who, Where::parked, *until);
      return false;
    }
    case Step::release_progress:
      --waiters_;
      rests_until_ = rests_after_wait(now);
      awake_by(rests_until_);
      return true;
  }
  return true;
}

void VirtualThreads::leave_role(std::uint32_t who) {
  if (seated_ == who) threads_[who].awake = agenda_.now() + callbacks_.sleep_time(last_news_);
  role_ = kNobody;
  if (for_role_.empty()) return;
  role_ = for_role_.front();
  for_role_.pop_front();
  wake(role_);
}

/// A thread of the program is through with its submit, or with its wait.
void VirtualThreads::end(std::uint32_t who) {
  Thread& thread = threads_[who];
  thread.where = Where::idle;
  if (std::holds_alternative<WaiterSteps>(thread.steps) && thread.over_since) {
    delays_.done = std::max(delays_.done, agenda_.now() - *thread.over_since);
    thread.over_since.reset();
  }
  if (who == kMain && lock_ != kMain) {
    thread.is_through = lock_ == kHolder;
    if (thread.is_through) return static_cast<void>(block(thread, Where::for_lock));
    lock_ = kMain;
  }
  become_free(who);
}

/// The thread that has the program's lock lets go of it, or nobody has it: who wants it has it now.
void VirtualThreads::release_lock() {
  lock_ = kNobody;
  if (hold_) {
    lock_ = kHolder;
    agenda_.at(agenda_.now() + *std::exchange(hold_, std::nullopt), *this, kHolder, 0);
    return;
  }
  if (threads_[kMain].where != Where::for_lock) return;
  lock_ = kMain;
  wake(kMain);
}

void VirtualThreads::ring() {
  rung_ = true;
  for (std::uint32_t who = 0; who < threads_.size(); ++who) {
    if (threads_[who].where != Where::transport) continue;
    rung_ = false;
    wake(who);
  }
}

void VirtualThreads::call() {
  for (std::uint32_t who = 0; who < threads_.size(); ++who) {
    if (threads_[who].where == Where::following) wake(who);
  }
}

void VirtualThreads::told() {
  if (!told_since_) told_since_ = agenda_.now();
}

void VirtualThreads::awake_by(Nanoseconds time) {
  const Thread& background = threads_[kBackground];
  const bool sleeps = background.where == Where::transport || background.where == Where::parked;
  if (!sleeps || background.until <= time) return;
  ring();
  woken_ = true;
  wake(kBackground);
}

bool VirtualThreads::turn() {
  note_delays();
  submit_policy_.taken(agenda_.now());
  const bool news = callbacks_.turn();
  if (news) last_news_ = agenda_.now();
  return news;
}

/// A turn takes whatever has come.
void VirtualThreads::note_delays() {
  const Nanoseconds now = agenda_.now();
  const auto note = [now](Nanoseconds& longest, std::optional<Nanoseconds> since) {
    if (since) longest = std::max(longest, now - *since);
  };
  note(delays_.told, std::exchange(told_since_, std::nullopt));
  note(delays_.silent, std::exchange(silent_since_, std::nullopt));
  std::optional<Nanoseconds> due = callbacks_.due();
  if (due) due = std::max(*due, went_on_);
  note(delays_.due, due);
}

}  // namespace casync
