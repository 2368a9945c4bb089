#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "casync/coordinator.hpp"
#include "executor/driver.hpp"
#include "executor/virtual/lane.hpp"
#include "executor/virtual/network.hpp"
#include "executor/virtual/stream.hpp"
#include "executor/virtual/threads.hpp"
#include "executor/virtual/workers.hpp"
#include "record/event_log.hpp"

namespace casync {

/// One named tensor of the job and how it goes. Two tensors may share a name, for ranks that disagree.
struct VirtualTensor {
  std::string name;
  Signature signature;
  GradientPlan plan;
  std::optional<GradientPlan> then{};  ///< the plan when that is over
};

/// A rank submits `tensor` this long after its step began.
struct Submission {
  std::uint32_t tensor = 0;
  Nanoseconds after = 0;
  std::int64_t rows = 0;               ///< allgather
  std::vector<std::int64_t> splits{};  ///< alltoall
};

struct Fault {
  enum class Kind : std::uint8_t { kill, stop, resume, cut, mend, abort, hold } kind = Kind::kill;
  Nanoseconds at = 0;
  Rank rank = 0;
  Rank peer = 0;         ///< cut, mend
  Nanoseconds time = 0;  ///< hold: with threads, one of the program keeps the GIL for so long
  double noticed = 1;    ///< kill: share of the peers whose transport hears of it
};

/// What the ranks' programs do: every step each rank submits, waits for all it submitted, and goes on.
struct VirtualScript {
  std::vector<VirtualTensor> tensors;
  std::vector<std::vector<std::vector<Submission>>> steps;  ///< [step][rank]
  std::vector<Fault> faults;
  std::vector<Nanoseconds>
      leave_after;  ///< per rank: shuts down this long after its last step; negative or empty: never
  std::vector<bool>
      on_stream{};     ///< per rank: what it allreduces is a device's, and computed on a stream; empty: on none
  double by_lane = 0;  ///< the share of what may go by the lane that a rank says so of; each rank draws for itself
  double forgets = 0;  ///< the share of submits before which a rank forgets the registration and makes another one
};

struct VirtualOptions {
  std::uint64_t seed = 1;
  NetworkOptions network;
  VirtualWorkers::Options workers;
  EngineOptions engine;  ///< member and host_of are filled in
  Driver::Options driver;
  Nanoseconds notice = 0;   ///< a rank's progress role notices news after up to this
  bool ticks = true;        ///< turns without news, as the real executor has them; liveness and stalls need them
  bool threads = false;     ///< turns as the threads of RealExecutor take them, instead of one for each news
  std::size_t waiters = 1;  ///< with threads: of each program, that wait; each for a part of what it has submitted
  bool sizes_only = false;  ///< bodies and tensors have lengths and no contents, codecs are Lengths
  Nanoseconds patience = 100'000'000'000;  ///< a world in which no operation ends for so long hangs
  CoordinatorOptions coordinator;
  std::string event_log;  ///< file, the rank is appended; empty: none
};

/// The memory of the ranks' programs, and what becomes of their operations. `sizes_only` worlds ask for nothing.
class VirtualProgram {
 public:
  virtual ~VirtualProgram() = default;
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;
  };
  /// Called when `rank` submits; the memory lives until the world ends.
  virtual Buffers buffers(Rank rank, std::uint32_t step, std::uint32_t tensor) = 0;
  virtual void ended(Rank rank, std::uint32_t step, std::uint32_t tensor, Operation& operation) = 0;
};

struct VirtualOutcome {
  bool hung = false;
  std::string waiting;  ///< hung: who waits for what
  Nanoseconds finished = 0;
  std::vector<Nanoseconds> step_ends;  ///< per step: when the last rank had finished it
  std::uint64_t turns = 0;
  VirtualThreads::Delays delays;  ///< of any rank, with threads
  std::vector<std::string> reports;
};

/// N Drivers and Engines over a virtual network and virtual processors, under one clock and one seed: thousands of
/// interleavings of a job, each found again by its seed. One thread; no two worlds share anything.
///   VirtualWorld world(options, script, program);
///   VirtualOutcome outcome = world.run();
class VirtualWorld final : private Agenda::Actor {
 public:
  /// `program` may be null for a sizes_only world.
  VirtualWorld(VirtualOptions options, VirtualScript script, VirtualProgram* program);
  ~VirtualWorld();

  /// Runs until every rank that lives has ended its program, or nothing happens any more.
  VirtualOutcome run();

  Driver& driver(Rank rank);
  const Engine& engine(Rank rank) const;
  const Transport& transport(Rank rank) { return network_.transport(rank); }
  bool alive(Rank rank) const;
  Nanoseconds now() const { return agenda_.now(); }
  /// What `rank` keeps of tensor `name`; null: nothing.
  const GradientState* kept(Rank rank, const std::string& name);

 private:
  struct Member;
  class Plans;
  enum What : std::uint32_t { kTurn, kAlarm, kStep, kSubmit, kTick, kFault, kLeave };
  void happen(std::uint32_t what, std::uint64_t value) override;
  void news(Rank rank);
  void came_silently(Rank rank);
  void wake_background(Rank rank);
  void submit(Rank rank, std::uint32_t tensor);
  bool is_small_there(const Operation& operation) const;
  void start_threads(Rank rank);
  bool turn(Rank rank);
  void set_alarm(Rank rank);
  bool may_go_by_lane(Rank rank, std::uint32_t tensor);
  void define(Rank rank, std::uint32_t tensor);
  bool chance(double share);
  void begin_step(Rank rank);
  void fault(const Fault& fault);
  void ended(Rank rank, Operation& operation);
  void stand_in(Rank rank, const Request& wanted);
  void check_step(Rank rank);
  bool needed(Rank rank) const;
  std::string waiting() const;
  GradientPlan plan_of(const std::string& name, const Signature& signature, std::uint32_t step) const;
  EngineOptions engine_options(Rank rank) const;

  VirtualOptions options_;
  VirtualScript script_;
  VirtualProgram* program_;
  Agenda agenda_;
  VirtualNetwork network_;
  VirtualNetwork lanes_;  // of devices
  std::vector<Definition> definitions_;
  std::vector<std::unique_ptr<EventLog>> logs_;  // outlive the ranks
  std::vector<std::unique_ptr<Member>> ranks_;
  std::unique_ptr<std::byte[]> nothing_;  // sizes_only: what all buffers point to
  Nanoseconds last_end_ = 0;              // of an operation
  std::size_t resumes_ = 0;               // stopped ranks that will go on
  VirtualOutcome outcome_;
};

}  // namespace casync
