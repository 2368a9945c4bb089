#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "casync/transport.hpp"
#include "common/clock.hpp"
#include "common/thread_time.hpp"
#include "executor/measure/copy_meter.hpp"
#include "executor/measure/link_meter.hpp"
#include "executor/measure/pings.hpp"
#include "executor/measure/run_meter.hpp"
#include "executor/measure/step_clock.hpp"
#include "executor/measure/step_meter.hpp"
#include "executor/memory/memory.hpp"
#include "executor/run/compute.hpp"
#include "plan/planning.hpp"

namespace casync {

/// What one rank measures for the planner while it works. As long as the planning wants no costs, only steps are timed.
/// Used by the thread that drives the Engine.
class Meters {
 public:
  /// `near`: per rank, whether it is on this host.
  Meters(Planning& planning, const Memory& memory, std::vector<bool> near, Rank self)
      : planning_(planning), memory_(memory), near_(std::move(near)), pings_(self, static_cast<Rank>(near_.size())) {
    look();
  }

  void measured(const Measurement& measurement);
  void measured(const EncodedSize& size);

  /// A job for `task` of a run has come back.
  void computed(const Job& job, const Task& task);

  /// Whether a step of the program begins with an operation that is about to enter.
  bool begins_step(const Operation& operation) const {
    return is_step_work(operation) && clock_.begins(operation.step);
  }
  /// An operation enters; before its run begins.
  void submitted(Operation& operation);

  // Runs, by instance.
  void begun(const action::Begin& run, const Operation& operation, Nanoseconds now);
  void encoded(std::uint32_t instance, const Task& task, std::uint64_t bytes);
  void ended(std::uint32_t instance, const Operation& operation, Nanoseconds now);
  void failed(const Operation& operation, Nanoseconds now);
  const RunMeter::Encoded& encoded_in(std::uint32_t instance) const { return runs_.of(instance); }

  // Links. While a TransportCall lives the transport is at work.
  class TransportCall {
   public:
    explicit TransportCall(Meters& meters) : meters_(meters.wanted() ? &meters : nullptr) {
      if (meters_ == nullptr) return;
      meters_->inside_.enter(steady_now());
      meters_->across_.enter(thread_time().worked);
    }
    ~TransportCall() {
      if (meters_ == nullptr) return;
      meters_->across_.leave(thread_time().worked);
      meters_->inside_.leave(steady_now());
    }
    TransportCall(const TransportCall&) = delete;
    TransportCall& operator=(const TransportCall&) = delete;

   private:
    Meters* meters_;  // null: nothing is measured
  };
  /// While it lives the thread that drives computes jobs.
  class Jobs {
   public:
    explicit Jobs(Meters& meters) : meters_(meters), begun_(meters.worked()) {}
    ~Jobs() { meters_.own_.turns -= meters_.worked() - begun_; }
    Jobs(const Jobs&) = delete;
    Jobs& operator=(const Jobs&) = delete;

   private:
    Meters& meters_;
    Nanoseconds begun_;
  };
  void turn_took(Nanoseconds worked) { own_.turns += worked; }
  void body_begun(Rank peer, Nanoseconds now);
  void body_done(Rank peer, std::size_t bytes, Nanoseconds now);
  /// A message of `bytes` was handed to the transport, which began at `begun`.
  void sent(Rank peer, std::size_t bytes, Nanoseconds begun);
  /// The rank to which a ping goes now.
  std::optional<Rank> to_ping() { return wanted() ? pings_.ask(steady_now()) : std::nullopt; }
  void pong(Rank peer);

  /// Whether the planning wants costs. To ask it each time would cost small operations more than all that is measured.
  bool wanted() const { return wanted_; }
  /// The planning may want other costs than before: a tensor was registered, or the root was told them.
  void look() { wanted_ = planning_.measuring(); }

 private:
  /// What the runtime itself has done since the step began.
  struct Own {
    Nanoseconds turns = 0;  // of the threads that drove, on a processor, without jobs
    std::size_t operations = 0, messages = 0;
    Nanoseconds bodies_before = 0;  // what bodies had taken of all turns
  };
  void operations_took();
  ReadyGradient ready_gradient(const Operation& operation, Nanoseconds since_begin) const;
  /// What the calling thread has worked, where that is measured.
  Nanoseconds worked() const { return wanted() ? thread_time().worked : 0; }
  static bool is_step_work(const Operation& operation) {
    return reduces(operation.definition->signature.kind) && !operation.stands_in;
  }
  CostKind of(Rank peer, CostKind inter, CostKind intra) const { return near_[peer] ? intra : inter; }

  Planning& planning_;
  const Memory& memory_;
  std::vector<bool> near_;
  bool wanted_ = false;
  StepClock clock_;
  StepMeter steps_;
  std::vector<double> predicted_s_;  // by instance
  RunMeter runs_;
  LinkMeter between_;  // hosts
  CopyMeter across_;   // likewise: what a processor does for it
  CopyMeter inside_;   // this host
  Own own_;
  ThreadMoment step_submitter_;  // of the step's first gradient
  Pings pings_;
};

}  // namespace casync
