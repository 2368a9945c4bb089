#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/driver.hpp"
#include "executor/real/completing.hpp"
#include "executor/real/cuda_stream.hpp"
#include "executor/real/worker_pool.hpp"
#include "progress/submit_policy.hpp"
#include "progress/thread_steps.hpp"

namespace casync {

/// Drives one Engine with real time, threads and a transport.
///
/// Threads. The *progress role* (`progress_mutex_`) belongs to one thread at a time: the background thread; a thread
/// that waits for an operation and meanwhile does the background thread's work, which saves two context switches per
/// small operation; or a thread that submits and finds that nobody has made progress for a while. Everything the
/// Driver, the Engine and the transport hold is guarded by the role. The background thread lets go of it to sleep, so
/// that a thread that comes need not wait until it is awake; who sleeps in the transport has the seat instead
/// (`seat_`). While only small operations are outstanding, progress stays with the thread that submits and waits, and
/// the background thread rests: many of them are taken up in one turn and share their messages. `inbox_mutex_` guards
/// the inbox alone and is taken with the role or without; nothing is locked inside it.
///
/// What a turn leaves for the program to hear (operations with a completion that ended, stalls) is kept until the
/// thread that drove the turn has let go of the role and the seat: only then does it call the program, which may
/// submit. What is submitted there is taken up by that thread's next turn, or by the background thread if it takes
/// none.
class RealExecutor {
 public:
  struct Options {
    Driver::Options driver;
    int worker_threads = 1;
    std::function<void(const std::function<void()>&)> around_turn;  ///< as in SessionOptions
  };

  struct Callbacks {
    /// With the progress role. In the end it stores `done` of the operation, or calls `call_later`.
    std::function<void(Operation&)> finished;
    std::function<void(const Request&)> stand_in;  ///< with the progress role; as in Driver::Callbacks
    std::function<void(Operation&)> completed;     ///< without a lock, after the turn: it was given to `call_later`
    std::function<void(const Stall&)> report;      ///< without a lock, after the turn
    /// With the progress role, at the begin of each turn: may submit what has become ready. In how long it is to be
    /// called again though nothing wakes this executor.
    std::function<std::optional<Nanoseconds>()> look = [] { return std::nullopt; };
  };

  RealExecutor(std::unique_ptr<Engine> engine, std::shared_ptr<Transport> transport, std::unique_ptr<Planning> planning,
               Options options, Callbacks callbacks);
  ~RealExecutor();
  RealExecutor(const RealExecutor&) = delete;
  RealExecutor& operator=(const RealExecutor&) = delete;

  /// From now on operations may run on `stream`, and their messages go by `lane` (null: there is none), as soon as that
  /// is ready. Once. Any thread.
  void add_stream(std::unique_ptr<CudaStream> stream, std::unique_ptr<DeviceLane> lane);

  // Any thread.
  void define(std::uint32_t registration, Request definition);
  void forget(std::uint32_t registration, std::unique_ptr<Definition> definition);
  void submit(std::uint32_t registration, Operation* operation);
  /// Sees to it that what was submitted goes on without a `wait`: by a turn of the caller's own if none was lately.
  /// `awaited`: as in Operation.
  void advance(bool awaited);
  /// Makes progress once if nobody else does, for who asks again and again whether an operation is done.
  void poll();
  void abort(std::string why);
  /// Something has become ready that `look` will see.
  void wake() { wake_background(); }
  /// Makes progress until `done` or `timeout` passed; returns whether it is done. `done` is an operation's, or set by
  /// completions. [9]
  bool wait(const std::atomic<bool>& done, Nanoseconds timeout);
  /// Announces that this rank leaves, stops the background thread, closes the transport. Once. Returns after the last
  /// completion.
  void shutdown();

  /// Within `finished`, with the progress role: `completed` is called for the operation after the turn.
  void call_later(Operation& operation) { to_tell_.completed.push_back(&operation); }

  /// Within `finished`, `look` or `inspect`, with the progress role: `done` of an operation was stored.
  void has_ended() { has_ended_ = true; }

  /// With the progress role: what the next run of `registration` is like; null: nothing is agreed.
  std::shared_ptr<const TaskGraph> graph_of(std::uint32_t registration) const {
    return engine_->graph_of(registration);
  }
  /// With the progress role.
  bool has_lane() const { return lane_ != nullptr && lane_->ready(); }
  /// Why there never will be; empty: there is, or may yet be. With the progress role.
  std::string_view lane_refusal() const { return lane_ == nullptr ? std::string_view() : lane_->refusal(); }
  /// Whether the messages of such runs are worth the lane: they are none that would travel inside heads.
  bool is_for_lane(const TaskGraph& graph) const { return graph.smallest_message > small_bytes_; }

  /// Calls `read` while no thread makes progress: a consistent look at the Driver and the Engine.
  void inspect(const std::function<void(Driver&, const Engine&)>& read);

  /// The counters. Any thread; waits for nobody.
  const Counters& tally() const { return driver_.tally(); }
  const GradientCounters& gradients() const { return driver_.gradients(); }
  /// How long threads have been in `wait`, all together. Any thread.
  Nanoseconds waited() const { return waited_.load(std::memory_order_relaxed); }

  /// Since the executor was made. Any thread.
  Nanoseconds now() const;
  /// Whether the planning wants to know what things cost. Any thread; it may be so no longer.
  bool measures() const { return measures_.load(std::memory_order_relaxed); }

 private:
  /// What the program is to hear after the turn.
  struct ToTell {
    std::vector<Operation*> completed;
    std::vector<Stall> stalls;
    bool empty() const { return completed.empty() && stalls.empty(); }
  };
  void ring();
  void wake_background();
  void wake_background(Nanoseconds time);
  bool small(const Operation& operation) const;
  void finish(Operation& operation);
  /// A thread on its way through its steps.
  struct Thread {
    Seat kind = Seat::vacant;  ///< what it is in the seat; vacant: it never sits there
    bool awaited = true;       ///< of a submit
    Nanoseconds deadline = std::numeric_limits<Nanoseconds>::max();
    std::unique_lock<std::mutex> role{};
    bool is_seated = false;
    Nanoseconds time = -1;   ///< when it last looked
    Nanoseconds awake = 0;   ///< until then it may sleep
    bool owes_turn = false;  ///< for what completions have submitted
    SubmitPolicy::Advice advice{};
    ToTell to_tell{};
    Seen seen{};
  };
  template <typename Steps, typename Over>
  Step run(Steps& steps, Thread& thread, const Over& over);
  void leave_role(Thread& thread);
  void take_turn(Thread& thread);
  void sleep(Thread& thread);
  template <typename Over>
  void follow(Thread& thread, const Over& over);
  void call();
  bool tell(const ToTell& now);
  void leave_turn();
  void release_progress(Nanoseconds time);
  bool park();
  void background();
  template <typename Work>
  void attempt(const Work& work);
  void empty_transport();
  void collapse(const std::string& why);           // with the role
  void close_transport(bool failed);               // with the role
  bool turn();                                     // with the role
  bool turn_of_driver();                           // with the role
  Nanoseconds sleep_time(Nanoseconds time) const;  // with the role

  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Planning> planning_;
  WorkerPool workers_;
  WorkerPool planner_;                  // without a thread where nothing is planned
  std::unique_ptr<CudaStream> stream_;  // with the role
  std::unique_ptr<DeviceLane> lane_;    // with the role
  std::size_t small_bytes_;
  std::function<void(const std::function<void()>&)> around_turn_;
  Callbacks callbacks_;
  Driver driver_;

  std::mutex inbox_mutex_;
  Inbox inbox_;                             // but for jobs, which the workers keep
  Inbox taken_;                             // scratch, with the role
  SubmitPolicy submit_policy_;              // with the role
  Nanoseconds last_news_ = 0;               // with the role
  std::optional<Nanoseconds> looks_again_;  // with the role
  ToTell to_tell_;                          // with the role
  bool has_ended_ = false;                  // an operation, in this turn; with the role
  bool leaves_ = false;                     // the next turn says so to the others; with the role
  std::atomic<bool> closed_{false};         // the transport; written with the role and the inbox's mutex

  std::mutex progress_mutex_;
  std::atomic<Seat> seat_{Seat::vacant};   // taken with the role, kept without it
  std::atomic<bool> in_transport_{false};  // somebody is in Transport::wait
  std::atomic<int> followers_{0};
  std::mutex company_mutex_;
  std::condition_variable company_;           // the followers
  std::uint64_t calls_ = 0;                   // with the mutex
  std::atomic<Nanoseconds> sleeps_until_{0};  // the background thread; 0: awake, or rung
  std::atomic<Nanoseconds> rests_until_{0};   // the background thread, because another one makes progress
  std::atomic<int> large_{0};                 // outstanding operations that are not small
  std::atomic<int> waiters_{0};
  std::atomic<int> telling_{0};  // threads; raised with the role
  std::atomic<Nanoseconds> waited_{0};
  std::atomic<bool> measures_{false};
  std::atomic<bool> stop_{false};
  std::mutex parking_mutex_;
  bool woken_ = false;               // with the mutex
  std::condition_variable parking_;  // the background thread, while others make progress
  Nanoseconds start_ = 0;
  std::thread thread_;
};

}  // namespace casync
