#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include "casync/error.hpp"
#include "common/wire.hpp"

namespace casync {

namespace {

/// What `get` makes of a control message. Bytes that cannot be read do not say whose they are: the event does.
template <typename Get>
auto read(const event::Control& event, const Get& get) {
  try {
    return get(event.message);
  } catch (const CorruptPayload& error) {
    throw CorruptPayload(detail::concat("a control message from rank ", event.peer, ": ", error.what()),
                         {.peer = event.peer});
  }
}

/// A message that blames a rank blames one that there is.
template <typename Message>
Message checked(Message message, std::uint32_t members) {
  if (message.facts.peer.value_or(0) < members) return message;
  throw CorruptPayload(detail::concat("a control message blames rank ", *message.facts.peer, ", which there is not"));
}

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy)
    : options_(std::move(options)),
      policy_(std::move(policy)),
      out_(options_.member, members()),
      agreements_(options_.member, options_.host_of, options_.inline_bytes, options_.codecs, options_.kept),
      negotiation_({.member = options_.member,
                    .members = members(),
                    .eager_bytes = options_.eager_bytes,
                    .interval = options_.ready_interval.value_or(Negotiation::interval_for(members())),
                    .tensor_table = options_.tensor_table},
                   submissions_, agreements_, out_),
      tasks_({.inline_bytes = options_.inline_bytes,
              .pool_bytes = options_.pool_bytes,
              .members = members(),
              .at_once_bytes = options_.at_once_bytes,
              .batch_bytes = options_.batch_bytes},
             *policy_, out_),
      heartbeat_(options_.member, members(), options_.heartbeat),
      standstill_({.warning = options_.tensor_table.stall_warning, .timeout = options_.tensor_table.timeout}),
      left_(members(), false) {}

Engine::~Engine() = default;

// ---------------------------------------------------------------------------------------------------------------------
// What happened

/// What an event speaks of must be what this engine gave out: a log may have been changed.
void Engine::apply(const Event& event, Nanoseconds now, ActionSink& sink) {
  now_ = now;
  out_.open(sink);
  std::visit([this](const auto& what) { on(what); }, event);
}

// What names a rank or a task that there is not comes from an event log that is none.

void Engine::check_peer(Rank peer) const { CASYNC_CHECK(peer < members(), "there is no rank ", peer); }

void Engine::check_task(std::uint32_t instance, std::uint32_t task) const {
  CASYNC_CHECK(tasks_.has(instance, task), "instance ", instance, " has no task ", task);
}

void Engine::on(const event::Define& event) {
  CASYNC_CHECK(event.registration == submissions_.registrations(), "registrations are numbered in order");
  submissions_.define(event.definition);
}

void Engine::on(const event::Forget& event) {
  const Submissions::Registration* const known = submissions_.find_registration(event.registration);
  CASYNC_CHECK(known != nullptr && known->outstanding == 0, "registration ", event.registration,
               " is not known, or runs of it are outstanding");
  submissions_.forget(event.registration);
}

void Engine::on(const event::Submit& event) {
  CASYNC_CHECK(submissions_.find_registration(event.registration) != nullptr, "registration ", event.registration,
               " was never defined, or is forgotten");
  const OpKind kind = submissions_.registration(event.registration).signature.kind;
  CASYNC_CHECK(event.splits.size() == (kind == OpKind::alltoall ? members() : 0), "a submit of registration ",
               event.registration, " with ", event.splits.size(), " splits");
  const std::uint32_t run = submissions_.submit(event.registration, event.handle, event.settled, event.steps);
  if (failure_) {
    finish(run, *failure_);
  } else if (ending_) {
    finish(run, ending_->abort);
  } else if (left_[0]) {
    std::string gone = "rank 0 has shut down";  // perhaps only because another one had
    for (Rank p = 1; p < members(); ++p) {
      if (left_[p]) gone += detail::concat(", and so has rank ", p);
    }
    finish(run, {.text = detail::concat(gone, "; tensor ", submissions_.text(submissions_.run(run).name),
                                        " cannot be agreed on"),
                 .facts = {.kind = ErrorKind::shut_down, .peer = 0}});
  } else {
    submissions_.run(run).on_stream = event.on_stream;
    submissions_.run(run).by_lane = event.by_lane;
    submissions_.run(run).rows = event.rows;
    submissions_.run(run).splits.assign(event.splits.begin(), event.splits.end());
    carry_out(negotiation_.submit(run, now_));
  }
}

void Engine::on(const event::Launched& event) {
  check_task(event.instance, event.task);
  if (failure_ || !submissions_.run(event.instance).active) return;
  tasks_.moved(event.instance, now_);
  tasks_.launched(event.instance, event.task);
}

void Engine::on(const event::Ran& event) {
  check_task(event.instance, event.task);
  tasks_.returned(event.instance);
  Submissions::Run& run = submissions_.run(event.instance);
  if (!run.active) return;  // refused meanwhile
  if (event.nonfinite) run.nonfinite = true;
  tasks_.moved(event.instance, now_);
  tasks_.note_bytes(event.instance, event.task, event.bytes);
  if (event.failure != nullptr) {
    fail(*event.failure, true);
  } else if (failure_) {
    tasks_.note(event.instance, event.task);
  } else {
    complete(event.instance, event.task);
  }
  if (failure_ && run.active) wind_up(event.instance);
}

void Engine::on(const event::Sent& event) {
  check_task(event.instance, event.task);
  if (failure_) return;
  tasks_.moved(event.instance, now_);
  tasks_.sent(event.instance, event.task);
  complete(event.instance, event.task);
}

void Engine::on(const event::Received& event) {
  check_task(event.instance, event.task);
  if (failure_) return;
  tasks_.moved(event.instance, now_);
  heartbeat_.heard(tasks_.tasks_of(event.instance).graph().workflow.tasks[event.task].peer);
  tasks_.note_bytes(event.instance, event.task, event.bytes);
  complete(event.instance, event.task);
}

void Engine::on(const event::PeerDown& event) {
  check_peer(event.peer);
  heartbeat_.gone(event.peer);
  if (left_[event.peer]) return;
  fail({.status = Status::peer_failure,
        .text = detail::concat("rank ", event.peer, " is gone: ", event.why, ", noticed by rank ", options_.member),
        .facts = {.kind = ErrorKind::peer_gone, .peer = event.peer}},
       true);
}

void Engine::on(const event::GiveUp& event) {
  CASYNC_CHECK(event.why.status != Status::ok, "a reason to give up that says nothing failed");
  fail(event.why, true);
}

void Engine::on(const event::CostsKnown& event) {
  if (!failure_) negotiation_.costs_known(event.costs);
}

void Engine::on(const event::Planned& event) {
  if (!failure_) carry_out(negotiation_.planned(event.plans, now_));
}

void Engine::on(const event::PlansChanged& /*event*/) { negotiation_.plans_changed(); }

void Engine::on(const event::Flowed& event) {
  const auto flows = [&](Rank peer) { return std::ranges::find(event.peers, peer) != event.peers.end(); };
  for (std::uint32_t run = 0; run < submissions_.runs() && !failure_; ++run) {
    if (is_watched(run) && std::ranges::any_of(tasks_.standing(run).peers, flows)) tasks_.moved(run, now_);
  }
}

void Engine::on(const event::Control& event) {
  check_peer(event.peer);
  heartbeat_.heard(event.peer);
  const ControlKind kind = read(event, kind_of);
  // The session is over here; what was under way from ranks that do not know yet means nothing any more.
  if (failure_ && kind != ControlKind::ping) return;
  switch (kind) {
    case ControlKind::request:
      carry_out(negotiation_.hear(event.peer, read(event, get_request), now_));
      break;
    case ControlKind::ready:
      carry_out(negotiation_.hear(event.peer, read(event, get_ready), now_));
      break;
    case ControlKind::agreement:
      carry_out(negotiation_.hear(read(event, get_agreement)));
      break;
    case ControlKind::start:
      carry_out(negotiation_.hear(read(event, get_start)));
      break;
    case ControlKind::refusal:
      carry_out(negotiation_.hear(checked(read(event, get_refusal), members())));
      break;
    case ControlKind::submit_for_joined:
      carry_out(negotiation_.hear(read(event, get_submit_for_joined)));
      break;
    case ControlKind::moves: {
      const auto [op, sequence] = read(event, get_moves);
      if (agreements_.find(op) == nullptr) break;
      const std::uint32_t run = submissions_.find_run(agreements_.find(op)->name, sequence);
      if (run != Submissions::kNone && submissions_.run(run).begun) standstill_.heard(run, now_);
      break;
    }
    case ControlKind::credit:
      tasks_.allow(event.peer, read(event, get_credit).limit);
      break;
    case ControlKind::ping:
      out_.tell_plain(event.peer, ControlKind::pong);
      break;
    case ControlKind::pong:
      break;
    case ControlKind::links:
      read(event, [&](const auto bytes) { policy_->control(event.peer, get_links(bytes).bytes); });
      break;
    case ControlKind::costs:
      read(event, [&](const auto bytes) { negotiation_.hear(event.peer, get_costs(bytes)); });
      break;
    case ControlKind::abort:
      on_abort(event.peer, checked(read(event, get_abort), members()));
      break;
    case ControlKind::bye:
      on_bye(event.peer);
      break;
  }
}

void Engine::on(const event::Arrived& event) {
  check_peer(event.peer);
  heartbeat_.heard(event.peer);
  if (failure_) {
    drop(event.message_id);
    return;
  }
  const auto [op_number, sequence, tag] = event.key;
  const Agreements::Op* const op = agreements_.find(op_number);
  if (op != nullptr && submissions_.was_submitted(op->name, sequence)) {
    const std::uint32_t index = submissions_.find_run(op->name, sequence);
    const bool over = index == Submissions::kNone;
    if (over || (submissions_.run(index).begun && submissions_.run(index).op != op_number)) {
      drop(event.message_id);
      return;
    }
    if (submissions_.run(index).begun) {
      take(index, event.peer, tag, event.message_id);
      return;
    }
  }
  agreements_.keep(op_number, {event.peer, sequence, tag, event.message_id});
}

/// A message of a run that has begun.
void Engine::take(std::uint32_t index, Rank peer, std::uint32_t tag, std::uint64_t message_id) {
  const std::int64_t task = tasks_.tasks_of(index).graph().find_recv(peer, tag);
  if (task < 0) {
    const Submissions::Run& run = submissions_.run(index);
    throw CorruptPayload(detail::concat("rank ", peer, " sent message ", tag, " of tensor ",
                                        submissions_.text(run.name), ", which is not part of its plan"),
                         {.tensor = submissions_.text(run.name),
                          .op = submissions_.registration(run.registration).signature.kind,
                          .peer = peer});
  }
  tasks_.moved(index, now_);
  tasks_.arrived(index, static_cast<std::uint32_t>(task), message_id);
}

// ---------------------------------------------------------------------------------------------------------------------
// A run, from its begin to its end

void Engine::carry_out(const Negotiation::Outcomes& outcomes) {
  for (const Negotiation::Outcome& outcome : outcomes) {
    if (!outcome.refused) {
      begin(outcome.run);
    } else {
      const auto& why = *outcome.refused;
      // What has begun unasked computes nothing on its own: it merges when all have sent theirs, and then none is
      // refused. Its instance may so be used again at once.
      const bool begun = submissions_.run(outcome.run).begun;
      CASYNC_CHECK(!begun || !tasks_.computing(outcome.run), "a run is refused while it is computed");
      finish(outcome.run, {.status = why.status, .text = why.text, .facts = why.facts});
    }
  }
}

void Engine::begin(std::uint32_t index) {
  const Submissions::Run& run = submissions_.run(index);
  const auto [op_number, sequence] = std::pair(run.op, run.sequence);
  const Agreements::Op& op = *agreements_.find(op_number);
  const bool settles = !op.settling.empty() && run.settled != op.settled;
  const std::shared_ptr<const TaskGraph>& graph = (settles ? op.settling : op.graphs)[op.turn(run.step)];
  const bool by_lane = run.by_lane && graph == op.graphs.front();  // the lane was meant for that graph
  out_.emit(action::Begin{index, run.handle, op_number, sequence, run.step, graph, op.plan, by_lane});
  standstill_.begin(index, now_);
  submissions_.begin(index);  // not before: if there is no memory for it, nothing of it is to be undone
  const TaskManager::How how{.eager = op.eager,
                             .on_stream = run.on_stream,
                             .by_lane = by_lane,
                             .priority = priority_of(op.plan, op.signature)};
  const bool is_through = tasks_.begin(index, op_number, sequence, graph, how);
  tasks_.moved(index, now_);
  if (is_through) finish(index);
  for (const Agreements::Early& message : agreements_.claim(op_number, sequence)) {
    // The last message may finish the run, and the instance may be reused at once.
    if (!run.active || run.sequence != sequence) return;
    take(index, message.peer, message.tag, message.message_id);
  }
}

void Engine::complete(std::uint32_t index, std::uint32_t task) {
  if (!submissions_.run(index).active) return;  // refused meanwhile
  if (tasks_.complete(index, task)) finish(index);
}

void Engine::finish(std::uint32_t index) { end(index, nullptr); }

/// What failed is this operation; but bytes that were corrupt may have been those of another one.
void Engine::finish(std::uint32_t index, Abort why) {
  if (why.facts.kind != ErrorKind::corrupt_payload) {
    const Submissions::Registration& registration = submissions_.registration(submissions_.run(index).registration);
    why.facts.tensor = submissions_.text(registration.name);
    why.facts.op = registration.signature.kind;
  }
  end(index, &why);
}

void Engine::end(std::uint32_t index, const Abort* why) {
  const Submissions::Run& run = submissions_.run(index);
  negotiation_.ended(index);
  if (run.begun) tasks_.end(index);
  const Instance* const tasks = run.begun ? &tasks_.tasks_of(index) : nullptr;
  out_.emit(action::Finish{index, run.handle, run.nonfinite, why, tasks, failure_.has_value()});
  submissions_.end(index);
}

/// After a failure: ends the run, unless a worker is still at it. The worker reads and writes the user's memory, and
/// what it computes decides what is delivered and what is given back.
void Engine::wind_up(std::uint32_t index) {
  if (submissions_.run(index).begun && tasks_.computing(index)) return;
  finish(index, *failure_);
}

// ---------------------------------------------------------------------------------------------------------------------
// Who lives, and the end of the session

/// A rank that shuts down has done its part in all that it has seen the end of, but not everybody need have seen it: a
/// barrier, say, after which it left.
void Engine::on_abort(Rank peer, const Abort& abort) {
  if (!abort.left) return fail(abort, false);
  left_[peer] = true;
  heartbeat_.gone(peer);
  if (!ending_) ending_ = Ending{abort, now_ + kEndTime};
}

void Engine::on_bye(Rank peer) {
  left_[peer] = true;
  heartbeat_.gone(peer);
  policy_->left(peer);
  carry_out(negotiation_.left(peer, now_));
  if (peer == 0) root_left_at_ = now_;
}

/// The tensor table is the root's: without it nothing more can be agreed. What began because all had submitted it goes
/// on. What began unasked does so if the root has submitted it: then its contribution came before its goodbye, and
/// those of the others are on their way. A rank that gets the result from another one gives it a moment.
void Engine::end_without_root() {
  const bool late = now_ - *root_left_at_ >= kEndTime;
  bool undecided = false;
  for (std::uint32_t index = 0; index < submissions_.runs(); ++index) {
    const Submissions::Run& run = submissions_.run(index);
    if (!run.active || (run.begun && run.eager_bytes == 0)) continue;
    const auto messages = run.begun ? tasks_.from(0, index) : TaskManager::Messages::missing;
    if (messages == TaskManager::Messages::all_here) continue;
    if (messages == TaskManager::Messages::none_planned && !late) {
      undecided = true;
      continue;
    }
    finish(index, {.text = detail::concat("rank 0 has shut down without submitting tensor ",
                                          submissions_.text(run.name), ", which rank ", options_.member,
                                          " submitted at ", submissions_.registration(run.registration).site),
                   .facts = {.kind = ErrorKind::shut_down, .peer = 0}});
  }
  if (!undecided) root_left_at_.reset();
}

/// What has begun unasked waits for who has not submitted it yet, and the tensor table watches that: it travels in
/// heads.
bool Engine::is_watched(std::uint32_t run) const {
  return submissions_.run(run).active && submissions_.run(run).begun && !tasks_.is_eager(run);
}

/// Runs that have begun and stand still. One whose partitions or messages wait for memory or for a link, which older
/// ones have, moves as long as one of these does.
void Engine::check_runs(bool has_slept) {
  watches_ = false;
  if (!under_way()) return;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> in_order;
  for (std::uint32_t run = 0; run < submissions_.runs(); ++run) {
    if (is_watched(run)) in_order.emplace_back(tasks_.order(run), run);
  }
  std::ranges::sort(in_order);
  Nanoseconds older = 0;  // when one of them moved
  for (const auto& [order, run] : in_order) {
    if (has_slept) standstill_.heard(run, now_);  // nobody looked meanwhile
    if (older > tasks_.moved(run) && tasks_.is_blocked(run)) tasks_.moved(run, older);
    const Nanoseconds moved = tasks_.moved(run);
    older = std::max(older, now_ - standstill_.stands_for(run, moved, now_));
    if (standstill_.is_to_tell(run, moved, now_)) {
      out_.tell_all(Moves{submissions_.run(run).op, submissions_.run(run).sequence});
    }
    const Nanoseconds stood = standstill_.stands_for(run, moved, now_);
    switch (standstill_.check(run, moved, now_)) {
      case Standstill::Verdict::moves:
        break;
      case Standstill::Verdict::watched:
        watches_ = true;
        break;
      case Standstill::Verdict::report: {
        watches_ = true;
        const TaskManager::Standing standing = tasks_.standing(run);
        const Submissions::Registration& what = submissions_.registration(submissions_.run(run).registration);
        const Stall stall{submissions_.text(what.name), what.signature.kind, standing.peers,
                          standstill(run, stood, standing)};
        out_.emit(action::Report{stall});
        break;
      }
      case Standstill::Verdict::give_up:
        return give_up(run, stood);
    }
  }
}

/// The planner of the root must answer: until then no rank can begin the run.
void Engine::check_plans(bool has_slept) {
  if (has_slept) negotiation_.restart_unplanned(now_);
  Negotiation::Unplanned* const waits = negotiation_.longest_unplanned();
  if (waits == nullptr) return;
  const Nanoseconds stood = now_ - waits->since;
  const std::string text =
      detail::concat("tensor ", waits->name, " has waited for its plan for ", stood / 1'000'000'000,
                     " s: the planner of rank ", options_.member, " has not answered.");
  if (stood >= options_.tensor_table.timeout) {
    fail({.text = text + "\nCASYNC_TIMEOUT_SECONDS sets this time.",
          .facts = {.kind = ErrorKind::fault, .peer = options_.member}},
         true);
  } else if (stood >= options_.tensor_table.stall_warning && !std::exchange(waits->has_warned, true)) {
    out_.emit(action::Report{Stall{waits->name, waits->kind, {}, text}});
  }
}

std::string Engine::standstill(std::uint32_t run, Nanoseconds stood, const TaskManager::Standing& standing) const {
  std::string text = detail::concat("tensor ", submissions_.text(submissions_.run(run).name),
                                    " has begun, and nothing of it has moved for ", stood / 1'000'000'000,
                                    " s, noticed by rank ", options_.member, ".");
  for (const std::string& left : standing.left) text += "\n  " + left;
  return text;
}

/// A worker that is stuck may still be at the run's memory: nobody waits for it any more.
void Engine::give_up(std::uint32_t run, Nanoseconds stood) {
  const TaskManager::Standing standing = tasks_.standing(run);
  Abort why{.text = standstill(run, stood, standing) + "\nCASYNC_TIMEOUT_SECONDS sets this time."};
  if (tasks_.computing(run) || standing.peers.empty()) {
    why.facts = {.kind = ErrorKind::fault, .peer = options_.member};
  } else {
    why.status = Status::peer_failure;
    why.facts = {.kind = ErrorKind::peer_silent, .peer = standing.peers.front()};
  }
  fail(std::move(why), true);
  if (submissions_.run(run).active) finish(run, *failure_);
}

void Engine::on(const event::Shutdown& /*event*/) {
  if (!failure_) carry_out(negotiation_.goodbye(now_));
  if (failure_) {
    out_.tell_all(*failure_);  // who has not heard yet would only see this rank go
  } else if (outstanding()) {
    out_.tell_all(Abort{Status::aborted,
                        detail::concat("rank ", options_.member, " has shut down while ", submissions_.outstanding(),
                                       " of its operations were outstanding"),
                        true,
                        {.kind = ErrorKind::shut_down, .peer = options_.member}});
  } else {
    for (std::uint32_t p = 0; p < members(); ++p) {
      if (p != options_.member) out_.tell_plain(p, ControlKind::bye);
    }
  }
  fail({.text = "CaSync has been shut down on this rank",
        .facts = {.kind = ErrorKind::shut_down, .peer = options_.member}},
       false);
}

void Engine::fail(Abort why, bool announce) {
  if (failure_) return;
  failure_ = std::move(why);
  if (announce) out_.tell_all(*failure_);
  for (std::uint32_t run = 0; run < submissions_.runs(); ++run) {
    if (submissions_.run(run).active) wind_up(run);
  }
  for (const std::uint64_t message_id : agreements_.forget_all()) drop(message_id);
}

// ---------------------------------------------------------------------------------------------------------------------
// What follows from a batch of events

void Engine::decide(Nanoseconds now, ActionSink& sink) {
  now_ = now;
  out_.open(sink);
  if (ending_ && (now >= ending_->deadline || !outstanding())) {
    fail(ending_->abort, false);
  }
  if (failure_) return;
  if (root_left_at_) end_without_root();
  carry_out(negotiation_.speak(now, tasks_.admission().free_bytes()));
  negotiation_.want_plans();
  tasks_.open_partitions();
  tasks_.run_ready();

  outcome_.clear();
  policy_->decide(now, outcome_);
  // What the policies say to each other first: between two ranks it would wait until a batch that was sent before it is
  // through.
  for (auto& [peer, bytes] : outcome_.messages) out_.tell(peer, Links{std::move(bytes)});
  for (const LinkPolicy::Outcome::Batch& batch : outcome_.release) tasks_.emit(batch);

  if (now < next_check_) return;
  next_check_ = now + kCheckInterval;
  carry_out(negotiation_.check(now));
  if (!outstanding()) {
    heartbeat_.rest();
    return;
  }
  // Who has not looked for so long does not know what moved.
  const bool has_slept = now_ - std::exchange(checked_, now_) > standstill_.longest_gap();
  check_runs(has_slept);
  if (!failure_) check_plans(has_slept);
  if (failure_) return;
  const Heartbeat::Outcome beat = heartbeat_.check(now);
  for (const std::uint32_t peer : beat.ask) out_.tell_plain(peer, ControlKind::ping);
  if (!beat.lost.empty()) {
    const auto& [peer, why] = beat.lost.front();
    fail({.status = Status::peer_failure,
          .text = detail::concat(why, ", noticed by rank ", options_.member),
          .facts = {.kind = ErrorKind::peer_silent, .peer = peer}},
         true);
  }
}

std::optional<Nanoseconds> Engine::wakes_at() const {
  if (failure_) return std::nullopt;
  std::optional<Nanoseconds> earliest;
  const auto at = [&](std::optional<Nanoseconds> time) {
    if (time) earliest = std::min(earliest.value_or(*time), *time);
  };
  at(policy_->wakes_at());
  at(negotiation_.wakes_at());
  if (ending_) at(ending_->deadline);
  if (root_left_at_) at(*root_left_at_ + kEndTime);
  return earliest;
}

const Agreements::Op* Engine::next_op(std::uint32_t registration) const {
  const Submissions::Registration* const known = submissions_.find_registration(registration);
  return known == nullptr ? nullptr : agreements_.find(known->op);
}

const GradientPlan* Engine::plan_of(std::uint32_t registration) const {
  const Agreements::Op* const op = next_op(registration);
  return op == nullptr ? nullptr : &op->plan;
}

std::shared_ptr<const TaskGraph> Engine::graph_of(std::uint32_t registration) const {
  const Agreements::Op* const op = next_op(registration);
  return op == nullptr ? nullptr : op->graphs.front();
}

}  // namespace casync
