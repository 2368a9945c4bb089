#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "executor/virtual/agenda.hpp"
#include "progress/submit_policy.hpp"
#include "progress/thread_steps.hpp"

namespace casync {

/// The threads of one rank in virtual time: the background thread, the program's main thread, which submits and waits,
/// and others of the program that wait. They take the steps of progress/, as those of RealExecutor do; the numbers are
/// the wake-up conditions of docs/concurrency.md. A turn takes a while, and so does waking up: meanwhile other threads
/// take steps of theirs. What a thread waits for without end (the role, a call, the program's lock) has no time limit
/// here, so what is lost hangs.
class VirtualThreads final : private Agenda::Actor {
 public:
  struct Callbacks {
    std::function<bool()> turn;  ///< returns whether there was anything
    /// Driver::sleep_time; the argument is when the last news came.
    std::function<Nanoseconds(Nanoseconds)> sleep_time;
    std::function<std::optional<Nanoseconds>()> due{};  ///< Engine::wakes_at
  };
  /// The longest that something waited for a turn, or for the thread that waited for it.
  struct Delays {
    Nanoseconds told = 0;    ///< what rings, or was submitted
    Nanoseconds silent = 0;  ///< what rings nobody
    Nanoseconds due = 0;     ///< what the Engine does at its own time
    Nanoseconds done = 0;    ///< what is over, for the thread that waits for it
    void take_longer(const Delays& other);
  };
  /// A thread that is woken runs after up to `notice`, and a turn takes as long. `waiters`: threads that wait, of which
  /// the first one also submits.
  VirtualThreads(Agenda& agenda, Nanoseconds notice, bool alone, std::size_t waiters, Callbacks callbacks);

  /// The program does this as soon as none of its threads is busy with a submit or waits.
  void program(std::function<void()> what);
  /// The program has submitted something; `only_small` as in SubmitPolicy. [4, 5]
  void submitted(bool only_small);
  /// Thread `waiter` of the program waits, until `is_done`. [6, 7]
  void waits(std::size_t waiter);
  void is_done(std::size_t waiter);
  /// One more thread of the program wants its lock, the GIL, and keeps it for `time`.
  void hold(Nanoseconds time);
  /// Something has come, and whoever sleeps in the transport wakes; if nobody does, the next one to go to sleep. [1]
  void rung();
  /// Something has come that rings nobody. [2]
  void came_silently();
  /// The background thread is wanted at once, wherever it sleeps. [8]
  void wake_background();
  /// The process is stopped: no thread of it does anything, until `go_on`.
  void stop();
  void go_on();

  const Delays& delays() const { return delays_; }

 private:
  static constexpr std::uint32_t kBackground = 0;
  static constexpr std::uint32_t kMain = 1;
  static constexpr std::uint32_t kNobody = ~std::uint32_t{0};
  static constexpr std::uint32_t kHolder = kNobody - 1;  // of the program's lock
  enum class Where : std::uint8_t { idle, running, transport, parked, following, for_role, for_lock };
  struct Thread {
    std::variant<BackgroundSteps, WaiterSteps, VisitorSteps> steps;
    Where where = Where::idle;
    Nanoseconds until = 0;
    std::uint64_t sleeps = 0;  ///< how many: what wakes it from an earlier one means nothing
    Seen seen;
    SubmitPolicy::Advice advice;
    Nanoseconds awake = 0;
    std::optional<Nanoseconds> over_since;
    bool is_through = false;  ///< and waits for the program's lock
  };

  void happen(std::uint32_t who, std::uint64_t sleep) override;
  void start(std::uint32_t who);
  void run(std::uint32_t who);
  bool take(std::uint32_t who, Step step);
  bool block(Thread& thread, Where where);
  void end(std::uint32_t who);
  void become_free(std::uint32_t who);
  void leave_role(std::uint32_t who);
  void release_lock();
  void go_on_with_program();
  bool is_busy() const;
  void awake_by(Nanoseconds time);
  void sleep(std::uint32_t who, Where where, Nanoseconds until);
  void ring();
  void call();
  void wake(std::uint32_t who);
  void told();
  void note_delays();
  bool turn();

  Agenda& agenda_;
  Nanoseconds notice_;
  Callbacks callbacks_;
  SubmitPolicy submit_policy_;
  std::vector<Thread> threads_;
  std::deque<std::function<void()>> program_;
  std::uint32_t role_ = kNobody;
  std::deque<std::uint32_t> for_role_;
  Seat seat_ = Seat::vacant;
  std::uint32_t seated_ = kNobody;
  std::uint32_t lock_ = kMain;  // the program's
  std::optional<Nanoseconds> hold_;
  int waiters_ = 0;
  bool rung_ = false;  // while nobody slept in the transport
  bool woken_ = false;
  bool ended_ = false;
  bool only_small_ = false;
  bool main_waits_ = false;  // as soon as it is through with its submit
  bool stopped_ = false;
  Nanoseconds went_on_ = 0;  // a stopped process does nothing in time
  Nanoseconds rests_until_ = 0;
  Nanoseconds last_news_ = 0;
  std::optional<Nanoseconds> told_since_;
  std::optional<Nanoseconds> silent_since_;
  Delays delays_;
};

}  // namespace casync
