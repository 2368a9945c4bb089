#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/link_policy.hpp"
#include "engine/admission.hpp"
#include "engine/control.hpp"
#include "engine/event.hpp"
#include "engine/heartbeat.hpp"
#include "engine/ledger.hpp"
#include "plan/planning.hpp"
#include "task/instance.hpp"

namespace casync {

struct EngineOptions {
  std::uint32_t member = 0;
  std::vector<std::uint32_t> host_of;   ///< per member
  std::size_t inline_bytes = 12 << 10;  ///< messages up to this travel inside a head
  std::size_t pool_bytes = 24 << 20;    ///< memory for payloads and partial sums
  std::size_t eager_bytes = 1 << 20;    ///< small operations sent before the peers submitted them, in all
  Heartbeat::Options heartbeat;
  Ledger::Options ledger;
};

/// Makes the plan of a newly agreed tensor; called on the root only.
using PlanMaker = std::function<GradientPlan(const std::string& name, const Signature& signature)>;

/// All decisions of one rank: negotiation, admission, task graph, coordinator, liveness. A deterministic state machine
/// without thread, clock, lock, MPI or CUDA; DESIGN calls it the one Engine that two executors drive.
///
/// `apply` takes one event and does bookkeeping; `decide`, called after a batch of events, releases what may go. Both
/// emit actions. One thread at a time.
class Engine {
 public:
  Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy, std::unique_ptr<Planning> planning);
  /// With plans that stay as `plan` makes them.
  Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy, PlanMaker plan);
  ~Engine();

  void apply(const Event& event, Nanoseconds now, ActionSink& sink);
  void decide(Nanoseconds now, ActionSink& sink);

  /// The template that `instance` runs; valid from its `begin` to its `finish`.
  const Template& shape(std::uint32_t instance) const { return runs_[instance].graph.shape(); }
  /// Which registration `instance` runs, and how many runs of the name came before.
  std::uint32_t registration_of(std::uint32_t instance) const { return runs_[instance].registration; }
  std::uint32_t sequence_of(std::uint32_t instance) const { return runs_[instance].sequence; }
  std::uint32_t op_of(std::uint32_t instance) const { return runs_[instance].op; }
  const GradientPlan* plan_of(std::uint32_t registration) const;

  bool outstanding() const { return outstanding_ > 0; }
  /// Whether something runs that all ranks have agreed on.
  bool under_way() const { return under_way_ > 0; }
  /// Whether `decide` must be called again soon though nothing happens.
  bool waits_for_time() const { return policy_->waits_for_time(); }
  bool failed() const { return failure_.has_value(); }
  const Admission& admission() const { return admission_; }
  bool on_my_host(int peer) const {
    return options_.host_of[static_cast<std::size_t>(peer)] == options_.host_of[options_.member];
  }
  /// Whether `measured` events are wanted.
  bool measuring() const { return planning_->measuring(); }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffU;
  static constexpr Nanoseconds kCheckInterval = 250'000'000;

  struct Name {
    std::string text;
    std::uint32_t next_sequence = 0;
    std::array<std::uint32_t, 2> runs{kNone, kNone};  // by sequence % 2
  };
  struct Registration {
    std::uint32_t name = 0;
    Signature signature;
    std::string site;
    std::uint32_t op = kNone;
  };
  struct Early {  // a message for a run that is not submitted or not known here yet
    std::uint16_t peer;
    std::uint32_t sequence;
    std::uint32_t tag;
    std::uint64_t cookie;
  };
  struct Op {
    std::uint32_t name = kNone;
    GradientPlan plan;
    std::shared_ptr<const Template> shape;
    bool eager = false;
    std::vector<Early> early;
  };
  struct Waiting {  // a message whose receive is not armed yet
    std::uint32_t task;
    std::uint64_t cookie;
  };
  struct Run {
    bool active = false;
    bool begun = false;
    bool eager = false;
    bool nonfinite = false;
    std::uint32_t registration = 0;
    std::uint32_t name = 0;
    std::uint32_t op = kNone;
    std::uint32_t sequence = 0;
    std::uint64_t handle = 0;
    std::uint64_t first_unit = 0;
    std::size_t eager_bytes = 0;
    Instance graph;
    std::vector<Waiting> waiting;
  };
  struct Parked {  // a send that waits for the peer's window
    std::uint64_t unit;
    SendRequest request;
  };
  struct Failure {
    Status status;
    std::string text;
  };

  bool is_root() const { return options_.member == 0; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(options_.host_of.size()); }

  void on_define(const Event& event);
  void on_submit(const Event& event);
  void on_control(const Event& event);
  void on_arrived(const Event& event);
  void on_verdict(const Verdict& verdict);
  void on_start(const Start& start);
  void on_refuse(const Refuse& refuse);
  bool on_new_plan(const Start& start);

  void begin(std::uint32_t run, const Op& op);
  void open(std::uint32_t run, std::uint32_t partition);
  void complete(std::uint32_t run, std::uint32_t task);
  void make_ready(std::uint32_t run, std::uint32_t task);
  void place(std::uint32_t run, std::uint32_t task, std::uint64_t cookie);
  void claim_early(std::uint32_t op, std::uint32_t run);
  void finish(std::uint32_t run, Status status, std::string_view text);
  void fail(Status status, const std::string& text, bool tell);
  void drop_early(Op& op, std::uint32_t up_to);

  void tell_costs(const Registration& registration, std::uint32_t sequence);
  void to_root_or_ledger(const Request& request);
  void to_root_or_ledger(const Ready& ready);
  template <typename Message>
  void tell(std::uint16_t peer, const Message& message);
  template <typename Message>
  void tell_all(const Message& message);
  void tell_plain(std::uint16_t peer, ControlKind kind);
  void emit(Action action) { sink_->emit(action); }
  std::shared_ptr<const Template> make_shape(const Signature& signature, const GradientPlan& plan,
                                             const std::vector<std::int64_t>& rows) const;

  EngineOptions options_;
  std::unique_ptr<LinkPolicy> policy_;
  std::unique_ptr<Planning> planning_;
  Ledger ledger_;
  Admission admission_;
  Heartbeat heartbeat_;
  std::vector<Registration> registrations_;
  std::vector<Name> names_;
  std::unordered_map<std::string, std::uint32_t> name_index_;
  std::unordered_map<std::uint32_t, Op> ops_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> free_runs_;
  std::vector<std::vector<Parked>> parked_;  // per peer
  std::vector<bool> left_;                   // members that shut down in good order
  std::vector<std::uint32_t> ready_;         // scratch
  std::vector<Admission::Unit> units_;       // scratch
  LinkPolicy::Outcome outcome_;              // scratch
  Bytes scratch_;
  std::optional<Failure> failure_;
  std::size_t outstanding_ = 0;
  std::size_t under_way_ = 0;  // of those, how many have begun
  std::size_t eager_under_way_ = 0;
  Nanoseconds now_ = 0;
  Nanoseconds next_check_ = 0;
  ActionSink* sink_ = nullptr;
};

}  // namespace casync
