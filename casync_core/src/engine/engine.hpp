#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/link_policy.hpp"
#include "engine/admission.hpp"
#include "engine/agreements.hpp"
#include "engine/event.hpp"
#include "engine/heartbeat.hpp"
#include "engine/negotiation.hpp"
#include "engine/outbox.hpp"
#include "engine/standstill.hpp"
#include "engine/submissions.hpp"
#include "engine/task_manager.hpp"
#include "engine/tensor_table.hpp"

namespace casync {

struct EngineOptions {
  std::uint32_t member = 0;
  std::vector<std::uint32_t> host_of;       ///< per member
  std::size_t inline_bytes = kInlineBytes;  ///< messages up to this travel inside a head, which must have room for them
  std::size_t pool_bytes = kPoolBytes;      ///< memory for payloads and partial sums
  std::size_t eager_bytes = 1 << 20;        ///< small operations sent before the peers submitted them, in all
  std::size_t at_once_bytes = 64 << 10;  ///< compute tasks that touch up to this many bytes of gradient ask no worker,
  std::size_t batch_bytes = 1 << 20;     ///< unless all that are ready touch more than this; workers get as much each
  /// Between two messages of what is ready to the root, and of what starts from it. Nothing: as many ranks need it.
  std::optional<Nanoseconds> ready_interval{};
  CodecMaker codecs = make_codec;  ///< what plans name
  LeastUsed::Limits kept{};        ///< operations that are agreed on and known: the same on all ranks
  Heartbeat::Options heartbeat;
  TensorTable::Options tensor_table;
};

/// All decisions of one rank: negotiation, admission, task graph, coordinator, liveness. A deterministic state machine
/// without thread, clock, lock, MPI or CUDA; DESIGN calls it the one Engine that two executors drive.
///
/// `apply` takes one event and does bookkeeping; `decide`, called after a batch of events, releases what may go. Both
/// emit actions. One thread at a time.
///
/// Its parts: Submissions and Agreements hold what this rank has submitted and what all have agreed on; Negotiation
/// leads from the one to the other and begins runs, which TaskManager carries through. What is left here joins them:
/// what an event is about, who lives, and how everything ends.
class Engine {
 public:
  Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy);
  ~Engine();

  void apply(const Event& event, Nanoseconds now, ActionSink& sink);
  void decide(Nanoseconds now, ActionSink& sink);

  /// The plan of what `registration` will be next, and what its runs are like; null: none is agreed.
  const GradientPlan* plan_of(std::uint32_t registration) const;
  std::shared_ptr<const TaskGraph> graph_of(std::uint32_t registration) const;

  bool outstanding() const { return submissions_.outstanding() > 0; }
  /// Whether some run has begun: all ranks have submitted it, or it is small and was sent unasked.
  bool under_way() const { return submissions_.under_way() > 0; }
  /// When `decide` must be called again though nothing happens. Nothing: there is no such time.
  std::optional<Nanoseconds> wakes_at() const;
  bool failed() const { return failure_.has_value(); }
  /// Why, if it has.
  const Abort& failure() const { return *failure_; }
  /// Whether it wants to hear by event::Flowed which bodies move, for a run seems to stand still.
  bool watches() const { return watches_; }
  /// Messages up to this travel inside a head.
  std::size_t inline_bytes() const { return options_.inline_bytes; }
  const Admission& admission() const { return tasks_.admission(); }
  std::size_t sends_waiting() const { return tasks_.sends_waiting(); }
  /// Per member, on the root; empty elsewhere.
  bool someone_joined() const { return negotiation_.someone_joined(); }
  std::span<const Lateness> lateness() const { return negotiation_.lateness(); }
  bool on_my_host(int peer) const {
    return options_.host_of[static_cast<std::size_t>(peer)] == options_.host_of[options_.member];
  }

 private:
  static constexpr Nanoseconds kCheckInterval = 250'000'000;
  static constexpr Nanoseconds kEndTime = 1'000'000'000;  // for what may end after a rank has left

  struct Ending {
    Abort abort;
    Nanoseconds deadline;
  };

  const Agreements::Op* next_op(std::uint32_t registration) const;
  std::uint32_t members() const { return static_cast<std::uint32_t>(options_.host_of.size()); }

  void check_peer(Rank peer) const;
  void check_task(std::uint32_t instance, std::uint32_t task) const;
  void on(const event::Define& event);
  void on(const event::Forget& event);
  void on(const event::Submit& event);
  void on(const event::Control& event);
  void on(const event::Arrived& event);
  void on(const event::Launched& event);
  void on(const event::Ran& event);
  void on(const event::Sent& event);
  void on(const event::Received& event);
  void on(const event::PeerDown& event);
  void on(const event::GiveUp& event);
  void on(const event::Shutdown& event);
  void on(const event::CostsKnown& event);
  void on(const event::Planned& event);
  void on(const event::PlansChanged& event);
  void on(const event::Flowed& event);
  void on_abort(Rank peer, const Abort& abort);
  void on_bye(Rank peer);
  void end_without_root();
  bool is_watched(std::uint32_t run) const;
  void check_runs(bool has_slept);
  void check_plans(bool has_slept);
  void give_up(std::uint32_t run, Nanoseconds stood);
  std::string standstill(std::uint32_t run, Nanoseconds stood, const TaskManager::Standing& standing) const;

  void carry_out(const Negotiation::Outcomes& outcomes);
  void begin(std::uint32_t run);
  void take(std::uint32_t index, Rank peer, std::uint32_t tag, std::uint64_t message_id);
  void complete(std::uint32_t run, std::uint32_t task);
  void finish(std::uint32_t run);
  void finish(std::uint32_t run, Abort why);
  void end(std::uint32_t run, const Abort* why);
  void wind_up(std::uint32_t run);
  void drop(std::uint64_t message_id) { out_.emit(action::Drop{message_id}); }
  void fail(Abort why, bool announce);

  EngineOptions options_;
  std::unique_ptr<LinkPolicy> policy_;
  Outbox out_;
  Submissions submissions_;
  Agreements agreements_;
  Negotiation negotiation_;
  TaskManager tasks_;
  Heartbeat heartbeat_;
  Standstill standstill_;
  bool watches_ = false;
  Nanoseconds checked_ = 0;
  std::vector<bool> left_;       // members that shut down in good order
  LinkPolicy::Outcome outcome_;  // scratch
  std::optional<Abort> failure_;
  std::optional<Ending> ending_;             // soon to be the failure
  std::optional<Nanoseconds> root_left_at_;  // until no run is left that the root may not have submitted
  Nanoseconds now_ = 0;
  Nanoseconds next_check_ = 0;
};

}  // namespace casync
