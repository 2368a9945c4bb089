#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/link_policy.hpp"
#include "engine/admission.hpp"
#include "engine/outbox.hpp"
#include "task/instance.hpp"

namespace casync {

/// Runs the task graphs of begun operations (paper: section 3.1, the task manager). A task that becomes ready turns
/// into an action at once, or waits here for what it lacks: its partition for memory, a send for its receiver's credit
/// or, at the LinkPolicy, for its link, a receive for its message. Memory is handed out in the order of begins. Of what
/// waits for anything else a higher priority goes first, and among equals what was ready first.
class TaskManager {
 public:
  struct Options {
    std::size_t inline_bytes = 0;  ///< messages up to this travel inside a head and wait for no link
    std::size_t pool_bytes = 0;
    std::uint32_t members = 1;
    std::size_t at_once_bytes = 0;  ///< as EngineOptions has them
    std::size_t batch_bytes = 0;
  };
  TaskManager(const Options& options, LinkPolicy& policy, Outbox& out);

  struct How {
    bool eager = false;      ///< it waits neither for memory nor for credit
    bool on_stream = false;  ///< its compute tasks run on a stream
    bool by_lane = false;    ///< no message of it travels inside a head
    std::int32_t priority = 0;
  };
  /// Begins the graph of `instance`, for run `sequence` of `op`. Returns whether it is through, because it has no
  /// tasks.
  bool begin(std::uint32_t instance, std::uint32_t op, std::uint32_t sequence,
             const std::shared_ptr<const TaskGraph>& graph, How how);
  /// The link policy lets these sends go, which are to one peer.
  void emit(std::span<const SendRequest> batch);
  /// The send `task` has left this rank: what it took of its link comes back.
  void sent(std::uint32_t instance, std::uint32_t task);
  /// The payload that `task` has encoded or received has `bytes`. Codecs that choose the length write less than they
  /// may.
  void note_bytes(std::uint32_t instance, std::uint32_t task, std::uint64_t bytes);
  /// `task` is launched on its stream.
  void launched(std::uint32_t instance, std::uint32_t task);
  /// `task` is done. Returns whether it was the last of its run.
  bool complete(std::uint32_t instance, std::uint32_t task);
  /// Hands out the compute tasks that have become ready since the last call, in batches: by priority.
  void run_ready();
  /// A worker or a stream is through with a task, whatever came of it.
  void returned(std::uint32_t instance) { --runs_[instance].computing; }
  /// Whether workers or a stream are at tasks of the run.
  bool computing(std::uint32_t instance) const { return runs_[instance].computing > 0; }
  /// After a failure: `task` is done all the same, but nothing follows from it.
  void note(std::uint32_t instance, std::uint32_t task) { runs_[instance].tasks.note(task); }
  /// The message of the receive `task` is here or announced.
  void arrived(std::uint32_t instance, std::uint32_t task, std::uint64_t message_id);
  /// What has come of the messages that `peer` sends in this run.
  enum class Messages : std::uint8_t { none_planned, missing, all_here };
  Messages from(std::uint32_t peer, std::uint32_t instance) const;
  /// Something of the run has come, left or been computed here.
  void moved(std::uint32_t instance, Nanoseconds now) { runs_[instance].moved = now; }
  /// What is known of how a run gets on.
  struct Standing {
    std::vector<Rank> peers{};        ///< from or to which a message is outstanding
    std::vector<std::string> left{};  ///< what is not done, in words
  };
  Nanoseconds moved(std::uint32_t instance) const { return runs_[instance].moved; }
  std::uint64_t order(std::uint32_t instance) const { return runs_[instance].order; }
  bool is_eager(std::uint32_t instance) const { return runs_[instance].eager; }
  /// Whether something of it waits here for memory or for a link, which others have.
  bool is_blocked(std::uint32_t instance) const { return runs_[instance].closed + runs_[instance].held > 0; }
  Standing standing(std::uint32_t instance) const;
  /// The run is over, through or not. Its graph stays until the instance is used again.
  void end(std::uint32_t instance);

  /// `peer` has opened the tickets below `limit`.
  void allow(Rank peer, std::uint64_t limit);
  /// Opens the partitions for which there is memory now, and tells those who send into them.
  void open_partitions();

  const Instance& tasks_of(std::uint32_t instance) const { return runs_[instance].tasks; }
  /// Whether `instance` has a graph, and that a `task`.
  bool has(std::uint32_t instance, std::uint32_t task) const {
    return instance < runs_.size() && runs_[instance].tasks.has_graph() &&
           task < runs_[instance].tasks.graph().workflow.tasks.size();
  }
  const Admission& admission() const { return admission_; }
  /// Sends that are ready, and wait for their receiver's credit or for their link.
  std::size_t sends_waiting() const { return parked_count_ + policy_.queued(); }

 private:
  struct Waiting {  // a message whose receive is not armed yet
    std::uint32_t task;
    std::uint64_t message_id;
  };
  struct Run {
    Instance tasks;
    std::uint32_t op = 0;
    std::uint32_t sequence = 0;
    bool eager = false;
    bool by_lane = false;
    std::int32_t priority = 0;
    std::uint64_t first_ticket = 0;
    std::uint32_t computing = 0;  // tasks that workers or a stream are at
    std::uint64_t order = 0;      // of its begin
    std::uint32_t closed = 0;     // partitions without memory
    std::uint32_t held = 0;       // sends that wait for credit or for their link
    Nanoseconds moved = 0;
    std::vector<Waiting> waiting;
    std::vector<std::uint64_t> slot_bytes;  // per slot, if the codec chooses the length of payloads
  };
  struct Parked {  // a send that waits for the peer's credit
    std::uint64_t ticket;
    SendRequest request;
  };
  void open(std::uint32_t instance, std::uint32_t partition);
  void make_ready(std::uint32_t instance, std::uint32_t task);
  void send(std::uint32_t instance, std::uint32_t task);
  void release(const SendRequest& request);
  void emit(const SendRequest& request, action::Send::Way way);
  SendRequest request(std::uint32_t instance, std::uint32_t task) const;
  /// Whether a message travels inside a head and asks no link for leave. Nobody else decides that.
  bool inlined(const SendRequest& request) const;
  void receive(std::uint32_t instance, std::uint32_t task);
  void run_on_host(std::span<const action::Run::Task> ready);
  void run(std::span<const action::Run::Task> batch, action::Where where);

  Options options_;
  LinkPolicy& policy_;
  Outbox& out_;
  Admission admission_;
  std::vector<Run> runs_;  // per instance
  std::uint64_t begun_ = 0;
  std::vector<std::vector<Parked>> parked_;  // per peer
  std::size_t parked_count_ = 0;
  std::vector<action::Run::Task> to_run_;   // compute tasks that are ready
  std::vector<SendRequest> together_;       // scratch
  std::vector<std::uint32_t> ready_;        // scratch
  std::vector<Admission::Ticket> tickets_;  // scratch
};

}  // namespace casync
