#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "engine/control.hpp"

/// The boundary of the Engine: what happened (Event) and what to do (Action). Both are plain: who and what they speak
/// of are numbers, never addresses of the user's memory, so that a log of events replays to the identical actions on
/// another machine. What they refer to (a definition, a text, bytes) is valid during `apply` and `emit` only.
///
/// A *registration* is a tensor that was defined, numbered in order. A *handle* is the executor's number of what was
/// submitted, an *instance* the Engine's number of a run: both are used again when the run is over. A *task* is one of
/// the run's task graph. A *message id* is the executor's number of a message that came.
namespace casync {

struct TaskGraph;
class Instance;

/// What the announcement of a bulk says of each of its messages takes so many bytes of a head.
inline constexpr std::size_t kBulkPartBytes = 24;

/// Which message it is: matches a send task to the peer's receive task.
struct MessageKey {
  std::uint32_t op = 0;
  std::uint32_t sequence = 0;
  std::uint32_t tag = 0;
};

namespace event {

/// The program has named a tensor: of `definition` only name, signature and site mean anything.
struct Define {
  std::uint32_t registration = 0;
  const Request& definition;
};
struct Submit {
  std::uint32_t registration = 0;
  std::uint32_t handle = 0;
  Settled settled = 0;                     ///< values that are kept of it (control.hpp)
  std::uint32_t steps = 0;                 ///< of the gradient that are counted
  std::int64_t rows = 0;                   ///< allgather: of this rank's own
  bool on_stream = false;                  ///< its compute tasks run on a stream, for its memory is a device's
  bool by_lane = false;                    ///< its messages can go by the lane of that device, by the plan that it has
  std::span<const std::int64_t> splits{};  ///< alltoall: per member, this rank's rows for it
};
/// A control message (control.hpp) came.
struct Control {
  Rank peer = 0;
  std::span<const std::byte> message;
};
/// A message of a run is here or announced.
struct Arrived {
  Rank peer = 0;
  MessageKey key;
  std::uint64_t message_id = 0;
};
/// A stream was given a task: what it is given from now on comes after it. The task itself is over when it has Ran.
struct Launched {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
};
/// A worker or a stream is through with a task; `failure` null: it is done.
struct Ran {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  std::uint64_t bytes = 0;  ///< of the payload that it has encoded, if any
  bool nonfinite = false;
  const Abort* failure = nullptr;
};
struct Sent {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
};
struct Received {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  std::uint64_t bytes = 0;  ///< of the message
};
struct PeerDown {
  Rank peer = 0;
  std::string_view why;
};
/// This rank's program failed, or bytes came that no correct peer sends.
struct GiveUp {
  const Abort& why;
};
/// This rank leaves.
struct Shutdown {};
/// What things cost on this rank, for the root's planning.
struct CostsKnown {
  std::span<const std::byte> costs;
};
/// The answer to PlanWanted, as a whole or in parts; only on the root.
struct Planned {
  struct Plan {
    std::uint32_t op = 0;
    std::optional<GradientPlan> plan;  ///< nothing: the one that it has stays
  };
  std::span<const Plan> plans;
};
/// A plan that was made may be another one now: each operation asks again before its next run.
struct PlansChanged {};
/// The program will not submit it again, and none of its runs is outstanding.
struct Forget {
  std::uint32_t registration = 0;
};

/// While a run stands still (Engine::watches): bytes of bodies have moved between this rank and these since the last
/// such event.
struct Flowed {
  std::span<const Rank> peers;
};

}  // namespace event

using Event = std::variant<event::Define, event::Submit, event::Control, event::Arrived, event::Ran, event::Sent,
                           event::Received, event::PeerDown, event::GiveUp, event::Shutdown, event::CostsKnown,
                           event::Planned, event::PlansChanged, event::Launched, event::Flowed, event::Forget>;

namespace action {

/// The instance runs what was submitted as `handle`.
struct Begin {
  std::uint32_t instance = 0;
  std::uint32_t handle = 0;
  std::uint32_t op = 0;
  std::uint32_t sequence = 0;  ///< how many runs of the name came before
  std::uint32_t step = 0;      ///< how many of its steps came before in this job, which may have been interrupted
  const std::shared_ptr<const TaskGraph>& graph;
  const GradientPlan& plan;
  bool by_lane = false;  ///< all of its memory is the device's, and its messages are bodies that go by the lane
};
/// Memory of a partition.
struct Reserve {
  std::uint32_t instance = 0;
  std::uint32_t partition = 0;
};
/// Where compute tasks run.
enum class Where : std::uint8_t {
  at_once,  ///< on the thread that drives the Engine, before anything else
  pool,     ///< on a worker
  stream,   ///< on the stream of the device that their memory is of, after all that it was given before
};
constexpr std::array<std::string_view, 3> kWhereName{"at once", "on the pool", "on the stream"};
constexpr std::string_view name_of(Where where) { return kWhereName[static_cast<std::size_t>(where)]; }
/// Compute tasks, in this order, by one worker or stream: each comes back by an event of its own.
struct Run {
  struct Task {
    std::uint32_t instance = 0;
    std::uint32_t task = 0;
  };
  std::span<const Task> batch;
  Where where = Where::at_once;
};
struct Send {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  Rank peer = 0;
  MessageKey key;
  enum class Way : std::uint8_t {
    in_head,  ///< it is small enough to travel inside a head
    as_body,
    in_bulk,  ///< with others as one body, which the next SendBulk sends
  } way = Way::as_body;
};
constexpr std::array<std::string_view, 3> kWayName{"in a head", "as a body", "in a bulk"};
constexpr std::string_view name_of(Send::Way way) { return kWayName[static_cast<std::size_t>(way)]; }
/// The `messages` for `peer` that were sent in a bulk since the last SendBulk leave as one body.
struct SendBulk {
  Rank peer = 0;
  std::uint32_t messages = 0;
};
/// The message of this id is what the receive `task` waits for.
struct Accept {
  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  std::uint64_t message_id = 0;
};
/// The message of this id belongs to nothing any more.
struct Drop {
  std::uint64_t message_id = 0;
};
/// Memory of a partition is free.
struct Release {
  std::uint32_t instance = 0;
  std::uint32_t partition = 0;
};
/// What was submitted as `handle` is done, or failed.
struct Finish {
  std::uint32_t instance = 0;
  std::uint32_t handle = 0;
  bool nonfinite = false;
  const Abort* failure = nullptr;  ///< null: it is done
  const Instance* run = nullptr;   ///< what of it was done; null: it had not begun
  bool session_is_over = false;    ///< it failed with all others, and transfers of it may still be under way
};
/// A control message (control.hpp) to a peer.
struct Control {
  Rank peer = 0;
  std::span<const std::byte> message;
};
/// For the user's log.
struct Report {
  const Stall& stall;
};
/// Make the plans of these operations and answer with Planned: their runs wait for it, nothing else does.
struct PlanWanted {
  struct Gradient {
    std::uint32_t op = 0;
    std::string name;
    Signature signature;
    std::optional<GradientPlan> current;  ///< what it has; nothing: it is new
    std::uint32_t step = 0;               ///< from which on the plan is to hold
  };
  std::span<const Gradient> gradients;
};
/// What things cost on `member`, for this rank's planning: it is the root.
struct CostsOf {
  Rank member = 0;
  std::span<const std::byte> costs;
};
/// Submit this in the place of the program, which has joined.
struct StandInFor {
  const Request& definition;
};

}  // namespace action

using Action = std::variant<action::Begin, action::Reserve, action::Run, action::Send, action::SendBulk, action::Accept,
                            action::Drop, action::Release, action::Finish, action::Control, action::Report,
                            action::PlanWanted, action::CostsOf, action::StandInFor>;

/// "submit", "ran".
std::string_view name_of(const Event& event);
/// All that an action says, but of bytes their checksum: "send {instance 3, task 1, peer 2, op 0, sequence 4, tag 0}".
std::string describe(const Action& action);

class ActionSink {
 public:
  virtual ~ActionSink() = default;
  virtual void emit(const Action& action) = 0;
};

/// Something that sees every event, decide and action of an Engine, in their order: the event log, a timeline.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event, Nanoseconds now) = 0;
  virtual void on_decide(Nanoseconds now) = 0;
  virtual void on_action(const Action& action) = 0;
  /// The Engine is through with the event or the decision.
  virtual void on_return() {}
};

/// Picks one of several lambdas by the alternative that a variant holds: std::visit(Overloads{...}, event).
template <typename... Lambdas>
struct Overloads : Lambdas... {
  using Lambdas::operator()...;
};
template <typename... Lambdas>
Overloads(Lambdas...) -> Overloads<Lambdas...>;

}  // namespace casync
