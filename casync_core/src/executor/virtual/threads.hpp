#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "executor/virtual/agenda.hpp"
#include "progress/intake.hpp"
#include "progress/waiting.hpp"

namespace casync {

/// The threads of one rank in virtual time: the program's, which submits and waits, and the background thread. They
/// sleep and are woken as those of RealExecutor are, by the decisions of progress/; the numbers are the wake-up
/// conditions of docs/concurrency.md. What is left out is that one of them is in the middle of a turn when another one
/// comes: there the mutexes of RealExecutor decide [8].
class VirtualThreads final : private Agenda::Actor {
 public:
  struct Callbacks {
    std::function<bool()> turn;                         ///< returns whether there was anything
    std::function<Nanoseconds(Nanoseconds)> nap;        ///< Driver::nap; the argument is when the last news came
    std::function<std::optional<Nanoseconds>()> due{};  ///< Engine::wakes_at
  };
  /// The longest that something waited for a turn.
  struct Delays {
    Nanoseconds told = 0;    ///< what rings, or was submitted
    Nanoseconds silent = 0;  ///< what rings nobody
    Nanoseconds due = 0;     ///< what the Engine does at its own time
    void take_longer(const Delays& other);
  };
  /// A thread that is woken runs after up to `notice`.
  VirtualThreads(Agenda& agenda, Nanoseconds notice, bool alone, Callbacks callbacks);

  /// The program has submitted something; `only_small` as in Intake. [4, 5]
  void submitted(bool only_small);
  /// The program waits, until `is_done`. [6, 7]
  void waits();
  void is_done();
  /// Something has come, and whoever sleeps in the transport wakes; if nobody does, the next one to go to sleep. [1]
  void rung();
  /// Something has come that rings nobody. [2]
  void came_silently();
  /// The background thread is wanted at once, wherever it sleeps. [8]
  void rouse();
  /// The process is stopped: no thread of it does anything, until `go_on`.
  void stop();
  void go_on();

  const Delays& delays() const { return delays_; }

 private:
  enum Who : std::uint32_t { kProgram, kBackground };
  struct Sleeper {
    enum class Where : std::uint8_t { awake, transport, parked } where = Where::awake;
    Nanoseconds until = 0;
    std::uint64_t sleeps = 0;  ///< how many: what wakes it from an earlier one means nothing
  };

  void happen(std::uint32_t who, std::uint64_t sleep) override;
  void run_program();
  void run_background();
  void awake_by(Nanoseconds time);
  void sleep(Who who, Sleeper::Where where, Nanoseconds until);
  void sleep_in_transport(Who who, Nanoseconds until);
  void ring();
  void wake(Who who);
  void told();
  void note_delays();
  bool turn();

  Agenda& agenda_;
  Nanoseconds notice_;
  Callbacks callbacks_;
  Intake intake_;
  Waiting waiting_;
  Sleeper sleepers_[2];
  bool rung_ = false;  // while nobody slept in the transport
  bool waits_ = false;
  bool stopped_ = false;
  Nanoseconds rests_until_ = 0;
  Nanoseconds last_news_ = 0;
  std::optional<Nanoseconds> told_since_;
  std::optional<Nanoseconds> silent_since_;
  Delays delays_;
};

}  // namespace casync
