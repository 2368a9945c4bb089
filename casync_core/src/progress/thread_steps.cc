#include "progress/thread_steps.hpp"

#include <algorithm>
#include <utility>

namespace casync {

Step ThreadSteps::plan(std::initializer_list<Step> steps) {
  std::ranges::copy(steps, steps_.begin());
  count_ = static_cast<std::uint8_t>(steps.size());
  at_ = 1;
  return steps_[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// A thread that waits

Step WaiterSteps::choose(const Seen& seen) {
  if (const Step next = planned(); next != Step::begin) return next;
  switch (last_) {
    case Step::try_role:
      has_role_ = seen.got;
      return seen.got ? Step::turn : Step::follow;  // whoever has it takes one more turn, since this thread has rung
    case Step::take_role:
      has_role_ = true;
      return seen.over ? leave() : Step::turn;
    case Step::turn:
      return seen.ended && seen.waiters > 1 ? Step::call : after_turn(seen);
    case Step::call:
      return after_turn(seen);
    case Step::yield:
      return Step::turn;
    case Step::try_seat:
      is_seated_ = seen.got;
      if (!has_role_) return start(seen);
      return is_seated_ ? go_on(seen) : follow();
    case Step::release_progress:
      return seen.to_tell ? plan({Step::tell, Step::end}) : Step::end;
    default:
      return start(seen);
  }
}

/// Without the role. Only who is in the seat, or alone, waits for the role: another waiter may have it for many turns.
Step WaiterSteps::start(const Seen& seen) {
  if (seen.over && std::exchange(is_seated_, false)) return plan({Step::leave_seat, Step::release_progress});
  if (seen.over) return Step::release_progress;
  if (is_seated_) return Step::take_role;
  if (seen.seat == Seat::vacant && last_ != Step::try_seat) return Step::try_seat;
  if (seen.waiters == 1) return Step::take_role;
  return last_ == Step::follow ? Step::follow : Step::try_role;  // called for somebody else's operation
}

Step WaiterSteps::after_turn(const Seen& seen) {
  if (seen.over) return leave();
  if (seen.to_tell) {
    has_role_ = false;
    if (!std::exchange(is_seated_, false)) return plan({Step::leave_role, Step::tell});
    return plan({Step::leave_role, Step::leave_seat, Step::tell});
  }
  if (is_seated_) return go_on(seen);
  if (seen.seat == Seat::vacant) return Step::try_seat;
  return seen.seat == Seat::waiter ? follow() : go_on(seen);
}

Step WaiterSteps::go_on(const Seen& seen) {
  switch (waiting_.after(seen.news)) {
    case Waiting::Next::turn:
      return Step::turn;
    case Waiting::Next::yield:
      return Step::yield;
    case Waiting::Next::sleep:
      break;
  }
  if (!is_seated_) return follow();  // the background thread leaves the seat when it is rung, and calls
  has_role_ = false;
  return plan({Step::leave_role, Step::sleep});
}

Step WaiterSteps::follow() {
  has_role_ = false;
  return plan({Step::leave_role, Step::ring, Step::follow});
}

/// What it waits for is over.
Step WaiterSteps::leave() {
  has_role_ = false;
  if (!std::exchange(is_seated_, false)) return plan({Step::leave_role, Step::release_progress});
  return plan({Step::leave_role, Step::leave_seat, Step::release_progress});
}

// ---------------------------------------------------------------------------------------------------------------------
// A thread that takes one turn

Step VisitorSteps::choose(const Seen& seen) {
  if (const Step next = planned(); next != Step::begin) return next;
  switch (last_) {
    case Step::begin:
      return Step::try_role;
    case Step::try_role:
      if (seen.got) return kind_ == Kind::submits && !has_let_go_ ? Step::ask : Step::turn;
      if (kind_ == Kind::polls) return Step::end;
      return has_let_go_ ? plan({Step::wake_background, Step::regain, Step::end})
                         : plan({Step::wake_background, Step::end});
    case Step::ask:
      if (!seen.got) return plan({Step::arrange, Step::leave_role, Step::end});
      has_let_go_ = true;  // without the role: who lets go of the program's lock may have to wait for it afterwards
      return plan({Step::leave_role, Step::let_go, Step::try_role});
    case Step::turn:
      return seen.ended && seen.waiters > 0 ? Step::call : leave();
    case Step::call:
      return leave();
    case Step::leave_role:
      return seen.to_tell ? Step::tell : end();
    case Step::tell:
      return end();
    default:
      return Step::end;
  }
}

Step VisitorSteps::leave() {
  return kind_ == Kind::submits ? plan({Step::arrange, Step::leave_role}) : Step::leave_role;
}

Step VisitorSteps::end() { return has_let_go_ ? plan({Step::regain, Step::end}) : Step::end; }

// ---------------------------------------------------------------------------------------------------------------------
// The background thread

Step BackgroundSteps::choose(const Seen& seen) {
  if (const Step next = planned(); next != Step::begin) return next;
  switch (last_) {
    case Step::begin:
      return Step::park;
    case Step::park:
      return seen.got ? Step::end : Step::take_role;
    case Step::take_role:
      return Step::turn;
    case Step::turn:
      return seen.ended && seen.waiters > 0 ? Step::call : after_turn(seen);
    case Step::call:
      return after_turn(seen);
    case Step::try_seat:
      // A waiter that has come meanwhile sits there, and makes progress.
      return seen.got ? plan({Step::leave_role, Step::sleep, Step::leave_seat, Step::end})
                      : plan({Step::leave_role, Step::end});
    default:
      return Step::end;
  }
}

Step BackgroundSteps::after_turn(const Seen& seen) {
  if (seen.to_tell) return plan({Step::leave_role, Step::tell, Step::end});
  return seen.news ? plan({Step::leave_role, Step::end}) : Step::try_seat;
}

}  // namespace casync
