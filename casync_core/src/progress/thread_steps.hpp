#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "progress/waiting.hpp"

/// Who of a rank's threads sleeps, who makes progress, and who is woken. Pure: a thread asks what it does next, does
/// that, says what it has seen, and asks again. RealExecutor does the steps with mutexes and system calls, and
/// VirtualThreads in virtual time: between two steps of one thread any other thread may do its own.
///
/// There are two things that one thread has at a time. With the *role* it takes turns: it drives the Engine. It is held
/// for turns alone, and never while its holder sleeps or waits for anything. In the *seat* it sleeps in the transport,
/// and so hears what comes. A thread that waits for an operation keeps the seat until that is over; the background
/// thread keeps it for one sleep. Who waits and finds another waiter there follows: that one takes the turns for both.
namespace casync {

enum class Seat : std::uint8_t { vacant, background, waiter };

enum class Step : std::uint8_t {
  begin,      ///< nothing was done yet
  let_go,     ///< of the program's own lock, the GIL
  regain,     ///< that lock: for as long as another thread of the program keeps it
  try_role,   ///< takes the role if it is free
  take_role,  ///< takes the role, which may take a turn of another thread
  leave_role,
  turn,              ///< with the role
  ask,               ///< with the role: whether a submit is worth a turn
  arrange,           ///< with the role: until when the background thread leaves progress to who has submitted
  try_seat,          ///< takes the seat if it is vacant
  leave_seat,        ///< and calls those who follow
  sleep,             ///< in the seat, in the transport
  follow,            ///< sleeps until it is called; not if nobody is in the seat, who would call
  yield,             ///< lets other threads run
  ring,              ///< whoever is in the seat wakes up, or does not fall asleep
  call,              ///< whoever waits sees what has ended: those who follow, and another waiter in the seat
  wake_background,   ///< the background thread takes a turn, wherever it is
  park,              ///< sleeps as long as others make progress
  release_progress,  ///< it waits no longer
  tell,              ///< the program what turns have left, without role and seat
  end,
};

/// What a thread has seen when it has done its last step.
struct Seen {
  bool got = false;      ///< try_role, try_seat: it has it; ask: worth a turn; park: others do make progress
  bool news = false;     ///< turn: something had come
  bool ended = false;    ///< turn: something is over that somebody may wait for
  bool over = false;     ///< what this thread waits for is, or its time, or the executor is stopped
  bool to_tell = false;  ///< turns have left something to be told
  Seat seat = Seat::vacant;
  int waiters = 0;  ///< this one included
};

/// What is common: steps that follow one another whatever is seen.
class ThreadSteps {
 protected:
  Step plan(std::initializer_list<Step> steps);
  Step planned() { return at_ < count_ ? steps_[at_++] : Step::begin; }

 private:
  std::array<Step, 6> steps_{};
  std::uint8_t count_ = 0;
  std::uint8_t at_ = 0;
};

/// A thread that waits for an operation.
class WaiterSteps : ThreadSteps {
 public:
  Step next(const Seen& seen) { return last_ = choose(seen); }

 private:
  Step choose(const Seen& seen);
  Step start(const Seen& seen);
  Step after_turn(const Seen& seen);
  Step go_on(const Seen& seen);
  Step follow();
  Step leave();

  Step last_ = Step::begin;
  bool has_role_ = false;
  bool is_seated_ = false;
  Waiting waiting_;
};

/// A thread that submits, and takes a turn if that is worth it; or one that asks how an operation is, and takes one if
/// nobody else does.
class VisitorSteps : ThreadSteps {
 public:
  enum class Kind : std::uint8_t { submits, polls };
  explicit VisitorSteps(Kind kind) : kind_(kind) {}
  Step next(const Seen& seen) { return last_ = choose(seen); }

 private:
  Step choose(const Seen& seen);
  Step leave();
  Step end();

  Kind kind_;
  Step last_ = Step::begin;
  bool has_let_go_ = false;
};

/// The background thread, once around.
class BackgroundSteps : ThreadSteps {
 public:
  Step next(const Seen& seen) { return last_ = choose(seen); }

 private:
  Step choose(const Seen& seen);
  Step after_turn(const Seen& seen);

  Step last_ = Step::begin;
};

}  // namespace casync
