#include "engine/engine.hpp"

#include <utility>

#include "casync/error.hpp"
#include "common/wire.hpp"

namespace casync {

namespace {

/// What `get` makes of a control message. Bytes that cannot be read do not say whose they are: the event does.
template <typename Get>
auto read(const Event& event, const Get& get) {
  try {
    return get(event.bytes);
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

class MadePlans final : public Planning {
 public:
  explicit MadePlans(PlanMaker make) : make_(std::move(make)) {}
  GradientPlan plan(const std::string& name, const Signature& signature, std::uint32_t /*sequence*/) override {
    return make_(name, signature);
  }

 private:
  PlanMaker make_;
};

}  // namespace

Engine::Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy, PlanMaker plan)
    : Engine(std::move(options), std::move(policy), std::make_unique<MadePlans>(std::move(plan))) {}

Engine::Engine(EngineOptions options, std::unique_ptr<LinkPolicy> policy, std::unique_ptr<Planning> planning)
    : options_(std::move(options)),
      policy_(std::move(policy)),
      planning_(std::move(planning)),
      out_(options_.member, members()),
      agreements_(options_.member, options_.host_of, options_.inline_bytes),
      negotiation_({options_.member, members(), options_.eager_bytes, options_.ledger}, submissions_, agreements_,
                   *planning_, out_,
                   {.begin = [this](std::uint32_t run) { begin(run); },
                    .refuse =
                        [this](std::uint32_t run, const Refuse& why) {
                          finish(run, {.status = why.status, .text = why.text, .facts = why.facts});
                        }}),
      tasks_({options_.inline_bytes, options_.pool_bytes, members()}, *policy_, out_),
      heartbeat_(options_.member, members(), options_.heartbeat),
      left_(members(), false) {}

Engine::~Engine() = default;

// ---------------------------------------------------------------------------------------------------------------------
// What happened

/// What an event speaks of must be what this engine gave out: a log may have been changed.
void Engine::check(const Event& event) const {
  switch (event.kind) {
    case EventKind::submit:
      CASYNC_CHECK(event.id < submissions_.registrations(), "registration ", event.id, " was never defined");
      CASYNC_CHECK(event.bytes.size() == splits_of(event.id) * sizeof(std::int64_t), "a submit of registration ",
                   event.id, " with ", event.bytes.size(), " bytes of splits");
      break;
    case EventKind::control:
    case EventKind::arrived:
    case EventKind::peer_down:
      CASYNC_CHECK(event.peer < members(), "there is no rank ", event.peer);
      break;
    case EventKind::ran:
    case EventKind::sent:
    case EventKind::received:
      CASYNC_CHECK(tasks_.has(event.id, event.task), "instance ", event.id, " has no task ", event.task);
      break;
    case EventKind::abort:
      CASYNC_CHECK(event.status != Status::ok, "an abort that says nothing failed");
      break;
    case EventKind::define:
    case EventKind::measured:
    case EventKind::shutdown:
      break;
  }
}

/// How many numbers of rows come with a submit.
std::size_t Engine::splits_of(std::uint32_t registration) const {
  return submissions_.registration(registration).signature.kind == OpKind::alltoall ? members() : 0;
}

void Engine::apply(const Event& event, Nanoseconds now, ActionSink& sink) {
  check(event);
  now_ = now;
  out_.open(sink);
  switch (event.kind) {
    case EventKind::define:
      CASYNC_CHECK(event.id == submissions_.registrations(), "registrations are numbered in order");
      negotiation_.define(get_definition(event.bytes));
      break;
    case EventKind::submit:
      on_submit(event);
      break;
    case EventKind::control:
      heartbeat_.heard(event.peer);
      on_control(event);
      break;
    case EventKind::arrived:
      heartbeat_.heard(event.peer);
      on_arrived(event);
      break;
    case EventKind::ran:
      on_ran(event);
      break;
    case EventKind::sent:
      if (failure_) break;
      tasks_.sent(event.id, event.task);
      complete(event.id, event.task);
      break;
    case EventKind::received:
      if (failure_) break;
      heartbeat_.heard(shape(event.id).workflow.tasks[event.task].peer);
      complete(event.id, event.task);
      break;
    case EventKind::peer_down:
      heartbeat_.gone(event.peer);
      if (!left_[event.peer]) {
        fail({.status = Status::peer_failure,
              .text = detail::concat("rank ", event.peer, " is gone: ", text_of(event.bytes), ", noticed by rank ",
                                     options_.member),
              .facts = {.kind = ErrorKind::peer_gone, .peer = event.peer}},
             true);
      }
      break;
    case EventKind::measured:
      planning_->measured({static_cast<CostKind>(event.task), text_of(event.bytes), static_cast<double>(event.size),
                           static_cast<double>(event.value) * 1e-9});
      break;
    case EventKind::abort:
      fail(get_abort(event.bytes), true);
      break;
    case EventKind::shutdown:
      on_shutdown();
      break;
  }
}

void Engine::on_submit(const Event& event) {
  const std::uint32_t run = submissions_.submit(event.id, event.value, event.tag, event.sequence);
  if (failure_) {
    finish(run, *failure_);
  } else if (ending_) {
    finish(run, ending_->abort);
  } else if (left_[0]) {
    finish(run, {.text = detail::concat("rank 0 has shut down; tensor ", submissions_.text(submissions_.run(run).name),
                                        " cannot be agreed on"),
                 .facts = {.kind = ErrorKind::shut_down, .peer = 0}});
  } else {
    submissions_.run(run).rows = static_cast<std::int64_t>(event.size);
    ByteReader splits(event.bytes);
    while (splits.left() > 0) submissions_.run(run).splits.push_back(splits.get<std::int64_t>());
    negotiation_.submit(run, now_);
  }
}

void Engine::on_ran(const Event& event) {
  tasks_.returned(event.id);
  Submissions::Run& run = submissions_.run(event.id);
  if (!run.active) return;  // refused meanwhile
  if (event.flag) run.nonfinite = true;
  if (event.status != Status::ok) {
    fail(get_abort(event.bytes), true);
  } else if (failure_) {
    tasks_.note(event.id, event.task);
  } else {
    complete(event.id, event.task);
  }
  if (failure_ && run.active) wind_up(event.id);
}

void Engine::on_control(const Event& event) {
  const ControlKind kind = read(event, kind_of);
  // The session is over here; what was under way from ranks that do not know yet means nothing any more.
  if (failure_ && kind != ControlKind::ping) return;
  switch (kind) {
    case ControlKind::request:
      negotiation_.hear(event.peer, read(event, get_request), now_);
      break;
    case ControlKind::ready:
      negotiation_.hear(event.peer, read(event, get_ready), now_);
      break;
    case ControlKind::verdict:
      negotiation_.hear(read(event, get_verdict));
      break;
    case ControlKind::start:
      negotiation_.hear(read(event, get_start));
      break;
    case ControlKind::refuse:
      negotiation_.hear(checked(read(event, get_refuse), members()));
      break;
    case ControlKind::stand_in:
      negotiation_.hear(read(event, get_stand_in));
      break;
    case ControlKind::window:
      tasks_.allow(event.peer, read(event, get_window).units);
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

void Engine::on_arrived(const Event& event) {
  if (failure_) {
    drop(event.value);
    return;
  }
  const Agreements::Op* const op = agreements_.find(event.op);
  if (op != nullptr && submissions_.was_submitted(op->name, event.sequence)) {
    const std::uint32_t index = submissions_.find_run(op->name, event.sequence);
    const bool over = index == Submissions::kNone;
    if (over || (submissions_.run(index).begun && submissions_.run(index).op != event.op)) {
      drop(event.value);
      return;
    }
    if (submissions_.run(index).begun) {
      const std::int64_t task = shape(index).find_recv(event.peer, event.tag);
      if (task < 0) throw_unplanned(event.peer, event.tag, submissions_.run(index));
      tasks_.arrived(index, static_cast<std::uint32_t>(task), event.value);
      return;
    }
  }
  agreements_.keep(event.op, {event.peer, event.sequence, event.tag, event.value});
}

// ---------------------------------------------------------------------------------------------------------------------
// A run, from its begin to its end

void Engine::begin(std::uint32_t index) {
  Submissions::Run& run = submissions_.run(index);
  const std::uint32_t op_number = run.op;
  const std::uint32_t sequence = run.sequence;
  const Agreements::Op& op = *agreements_.find(op_number);
  submissions_.begin(index);
  const bool settles = op.settling != nullptr && run.settled != op.settled;
  if (tasks_.begin(index, settles ? op.settling : op.shape, op.eager, run.handle)) finish(index);
  for (const Agreements::Early& message : agreements_.claim(op_number, sequence)) {
    // The last message may finish the run, and the instance may be reused at once.
    if (!run.active || run.sequence != sequence) return;
    const std::int64_t task = shape(index).find_recv(message.peer, message.tag);
    if (task < 0) throw_unplanned(message.peer, message.tag, run);
    tasks_.arrived(index, static_cast<std::uint32_t>(task), message.cookie);
  }
}

void Engine::throw_unplanned(std::uint32_t peer, std::uint32_t tag, const Submissions::Run& run) const {
  throw CorruptPayload(detail::concat("rank ", peer, " sent message ", tag, " of tensor ", submissions_.text(run.name),
                                      ", which is not part of its plan"),
                       {.tensor = submissions_.text(run.name),
                        .op = submissions_.registration(run.registration).signature.kind,
                        .peer = peer});
}

void Engine::complete(std::uint32_t index, std::uint32_t task) {
  if (!submissions_.run(index).active) return;  // refused meanwhile
  if (tasks_.complete(index, task)) finish(index);
}

void Engine::finish(std::uint32_t index) { finish(index, Status::ok, {}); }

/// What failed is this operation; but bytes that were corrupt may have been those of another one.
void Engine::finish(std::uint32_t index, Abort why) {
  if (why.facts.kind != ErrorKind::corrupt_payload) {
    const Submissions::Registration& registration = submissions_.registration(submissions_.run(index).registration);
    why.facts.tensor = submissions_.text(registration.name);
    why.facts.op = registration.signature.kind;
  }
  Bytes failure;
  put(failure, why);
  finish(index, why.status, failure);
}

void Engine::finish(std::uint32_t index, Status status, std::span<const std::byte> failure) {
  const Submissions::Run& run = submissions_.run(index);
  negotiation_.ended(index);
  if (run.begun) tasks_.end(index);
  out_.emit({.kind = ActionKind::finish,
             .status = status,
             .id = index,
             .nonfinite = run.nonfinite,
             .value = run.handle,
             .bytes = failure});
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
void Engine::on_abort(std::uint16_t peer, const Abort& abort) {
  if (!abort.left) return fail(abort, false);
  left_[peer] = true;
  heartbeat_.gone(peer);
  if (!ending_) ending_ = Ending{abort, now_ + kEndTime};
}

void Engine::on_bye(std::uint16_t peer) {
  left_[peer] = true;
  heartbeat_.gone(peer);
  policy_->left(peer);
  negotiation_.left(peer);
  if (peer == 0) root_left_at_ = now_;
}

/// The book is kept by the root: without it nothing more can be agreed. What began because all had submitted it goes
/// on. What began unasked does so if the root has submitted it: then its contribution came before its farewell, and
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

void Engine::on_shutdown() {
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
  for (const std::uint64_t cookie : agreements_.forget_all()) drop(cookie);
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
  tasks_.open_partitions();

  outcome_.clear();
  policy_->decide(now, outcome_);
  for (const SendRequest& request : outcome_.release) {
    out_.emit({.kind = ActionKind::send, .peer = request.peer, .id = request.instance, .task = request.task});
  }
  for (auto& [peer, bytes] : outcome_.messages) out_.tell(peer, Links{std::move(bytes)});

  if (now < next_check_) return;
  next_check_ = now + kCheckInterval;
  negotiation_.check(now);
  if (!outstanding()) {
    heartbeat_.rest();
    return;
  }
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

const GradientPlan* Engine::plan_of(std::uint32_t registration) const {
  if (registration >= submissions_.registrations()) return nullptr;
  const Agreements::Op* const op = agreements_.find(submissions_.registration(registration).op);
  return op == nullptr ? nullptr : &op->plan;
}

}  // namespace casync
