#include "executor/virtual/threads.hpp"

#include <algorithm>
#include <utility>

#include "progress/background.hpp"

namespace casync {

void VirtualThreads::Delays::take_longer(const Delays& other) {
  told = std::max(told, other.told);
  silent = std::max(silent, other.silent);
  due = std::max(due, other.due);
}

VirtualThreads::VirtualThreads(Agenda& agenda, Nanoseconds notice, bool alone, Callbacks callbacks)
    : agenda_(agenda), notice_(notice), callbacks_(std::move(callbacks)), intake_(alone) {
  sleep_in_transport(kBackground, 0);
}

void VirtualThreads::submitted(bool only_small) {
  told();
  const Nanoseconds now = agenda_.now();
  const Intake::Advice advice = intake_.submitted(now, only_small);
  if (advice.turn && !stopped_) turn();
  rests_until_ = rests_after_submit(advice, now);
  awake_by(awake_after_submit(advice, now, callbacks_.nap(last_news_)));
}

void VirtualThreads::waits() {
  waits_ = true;
  waiting_ = {};
  ring();
  sleep(kProgram, Sleeper::Where::awake, agenda_.now());
}

void VirtualThreads::is_done() {
  if (!std::exchange(waits_, false)) return;
  rests_until_ = rests_after_wait(agenda_.now());
  awake_by(rests_until_);
}

void VirtualThreads::rung() {
  told();
  ring();
}

void VirtualThreads::ring() {
  rung_ = true;
  for (const Who who : {kProgram, kBackground}) {
    if (sleepers_[who].where != Sleeper::Where::transport) continue;
    rung_ = false;
    wake(who);
  }
}

void VirtualThreads::came_silently() {
  if (!silent_since_) silent_since_ = agenda_.now();
}

void VirtualThreads::rouse() {
  rung();
  wake(kBackground);
}

void VirtualThreads::stop() { stopped_ = true; }

void VirtualThreads::go_on() {
  stopped_ = false;
  told_since_.reset();
  silent_since_.reset();
  for (const Who who : {kProgram, kBackground}) sleep(who, Sleeper::Where::awake, agenda_.now());
}

void VirtualThreads::told() {
  if (!told_since_) told_since_ = agenda_.now();
}

void VirtualThreads::awake_by(Nanoseconds time) {
  const Sleeper& background = sleepers_[kBackground];
  if (background.where == Sleeper::Where::awake || background.until <= time) return;
  ring();
  wake(kBackground);
}

void VirtualThreads::sleep(Who who, Sleeper::Where where, Nanoseconds until) {
  sleepers_[who].where = where;
  sleepers_[who].until = until;
  agenda_.at(until, *this, who, ++sleepers_[who].sleeps);
}

void VirtualThreads::sleep_in_transport(Who who, Nanoseconds until) {
  sleep(who, Sleeper::Where::transport, std::exchange(rung_, false) ? agenda_.now() : until);
}

void VirtualThreads::wake(Who who) {
  if (sleepers_[who].where == Sleeper::Where::awake) return;
  sleep(who, Sleeper::Where::awake, agenda_.now() + agenda_.up_to(notice_));
}

void VirtualThreads::happen(std::uint32_t who, std::uint64_t sleep) {
  if (stopped_ || sleep != sleepers_[who].sleeps) return;
  sleepers_[who].where = Sleeper::Where::awake;
  if (who == kProgram) {
    run_program();
  } else {
    run_background();
  }
}

void VirtualThreads::run_program() {
  if (!waits_) return;
  const bool news = turn();
  if (!waits_) return;
  const Nanoseconds now = agenda_.now();
  if (waiting_.after(news) == Waiting::Next::sleep) {
    sleep_in_transport(kProgram, now + callbacks_.nap(last_news_));
  } else {
    sleep(kProgram, Sleeper::Where::awake, now);
  }
}

void VirtualThreads::run_background() {
  const Nanoseconds now = agenda_.now();
  if (const auto until = parked_until(now, waits_ ? 1 : 0, rests_until_)) {
    sleep(kBackground, Sleeper::Where::parked, *until);
  } else if (turn()) {
    sleep(kBackground, Sleeper::Where::awake, now);
  } else {
    sleep_in_transport(kBackground, now + callbacks_.nap(last_news_));
  }
}

bool VirtualThreads::turn() {
  note_delays();
  intake_.taken(agenda_.now());
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
  note(delays_.due, callbacks_.due());
}

}  // namespace casync
