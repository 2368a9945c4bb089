#include "engine/engine.hpp"

#include <algorithm>

#include "casync/error.hpp"

namespace casync {

namespace {

class MadePlans final : public Planning {
 public:
  explicit MadePlans(PlanMaker make) : make_(std::move(make)) {}
  GradientPlan plan(const std::string& name, const Signature& signature) override { return make_(name, signature); }

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
      ledger_(
          members(), options_.ledger,
          {.verdict =
               [this](const Verdict& agreed, const Signature& signature) {
                 Verdict verdict = agreed;
                 const auto known = ops_.find(verdict.op);
                 verdict.plan = known != ops_.end() ? known->second.plan : planning_->plan(verdict.name, signature);
                 tell_all(verdict);
                 on_verdict(verdict);
               },
           .start =
               [this](const Start& start) {
                 if (on_new_plan(start)) return;
                 tell_all(start);
                 on_start(start);
               },
           .refuse =
               [this](const Refuse& refuse) {
                 tell_all(refuse);
                 on_refuse(refuse);
               },
           .report = [this](const std::string& text) { emit({.kind = ActionKind::report, .bytes = bytes_of(text)}); }}),
      admission_(options_.pool_bytes, members()),
      heartbeat_(options_.member, members(), options_.heartbeat),
      parked_(members()),
      left_(members(), false) {}

Engine::~Engine() = default;

void Engine::apply(const Event& event, Nanoseconds now, ActionSink& sink) {
  now_ = now;
  sink_ = &sink;
  switch (event.kind) {
    case EventKind::define:
      on_define(event);
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
      if (failure_) break;
      if (event.flag) runs_[event.id].nonfinite = true;
      complete(event.id, event.task);
      break;
    case EventKind::sent: {
      if (failure_) break;
      const Task& task = shape(event.id).workflow.tasks[event.task];
      if (event.flag) policy_->sent(static_cast<std::uint16_t>(task.peer), shape(event.id).message_bytes(task));
      complete(event.id, event.task);
      break;
    }
    case EventKind::received:
      if (failure_) break;
      heartbeat_.heard(static_cast<std::uint16_t>(shape(event.id).workflow.tasks[event.task].peer));
      complete(event.id, event.task);
      break;
    case EventKind::peer_down:
      heartbeat_.gone(event.peer);
      if (!left_[event.peer]) {
        fail(Status::peer_failure,
             detail::concat("rank ", event.peer, " is gone: ", text_of(event.bytes), ", noticed by rank ",
                            options_.member),
             true);
      }
      break;
    case EventKind::measured:
      planning_->measured({static_cast<CostKind>(event.task), text_of(event.bytes), static_cast<double>(event.size),
                           static_cast<double>(event.value) * 1e-9});
      break;
    case EventKind::abort:
      fail(Status::aborted, std::string(text_of(event.bytes)), true);
      break;
    case EventKind::shutdown:
      if (failed()) {
        tell_all(Abort{failure_->status, failure_->text});  // who has not heard yet would only see this rank go
      } else if (outstanding()) {
        tell_all(Abort{Status::aborted, detail::concat("rank ", options_.member, " has shut down while ", outstanding_,
                                                       " of its operations were outstanding")});
      } else {
        for (std::uint16_t p = 0; p < members(); ++p) {
          if (p != options_.member) tell_plain(p, ControlKind::bye);
        }
      }
      fail(Status::aborted, "CaSync has been shut down on this rank", false);
      break;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Negotiation

void Engine::on_define(const Event& event) {
  Request definition = get_definition(event.bytes);
  CASYNC_CHECK(event.id == registrations_.size(), "registrations are numbered in order");
  const auto [at, is_new] = name_index_.try_emplace(definition.name, static_cast<std::uint32_t>(names_.size()));
  if (is_new) names_.push_back({definition.name, 0, {kNone, kNone}});
  const auto codecs = planning_->define(definition.name, definition.signature);
  registrations_.push_back({at->second, std::move(definition.signature), std::move(definition.site), kNone});
  for (const std::string& codec : codecs) emit({.kind = ActionKind::measure, .bytes = bytes_of(codec)});
}

void Engine::on_submit(const Event& event) {
  std::uint32_t index = 0;
  if (free_runs_.empty()) {
    index = static_cast<std::uint32_t>(runs_.size());
    runs_.emplace_back();
  } else {
    index = free_runs_.back();
    free_runs_.pop_back();
  }
  const Registration& registration = registrations_[event.id];
  Name& name = names_[registration.name];
  Run& run = runs_[index];
  run.active = true;
  run.begun = run.nonfinite = run.eager = false;
  run.registration = event.id;
  run.name = registration.name;
  run.op = registration.op;
  run.sequence = name.next_sequence++;
  run.handle = event.value;
  run.eager_bytes = 0;
  name.runs[run.sequence % 2] = index;
  ++outstanding_;
  if (failure_) {
    finish(index, failure_->status, failure_->text);
    return;
  }
  if (left_[0]) {
    finish(index, Status::aborted, detail::concat("rank 0 has shut down; tensor ", name.text, " cannot be agreed on"));
    return;
  }

  if (planning_->measuring()) tell_costs(registration, run.sequence);

  if (run.op == kNone) {
    Request request{name.text, run.sequence, registration.signature, registration.site};
    if (registration.signature.kind == OpKind::allgather)
      request.signature.shape.rows = static_cast<std::int64_t>(event.size);
    to_root_or_ledger(request);
    return;
  }
  Op& op = ops_.at(run.op);
  const std::size_t bytes = op.shape->largest_message;
  if (op.eager && eager_under_way_ + bytes <= options_.eager_bytes) {
    run.eager_bytes = bytes;
    eager_under_way_ += bytes;
    const std::uint32_t op_index = run.op;
    if (is_root()) ledger_.ready(0, {op_index, run.sequence}, false, now_);
    if (!runs_[index].active || runs_[index].begun) return;  // the ledger has refused or started it at once
    begin(index, op);
    claim_early(op_index, index);
  } else {
    to_root_or_ledger(Ready{run.op, run.sequence});
  }
}

/// Before the submit itself is told, so that the root knows all ranks' costs when it has heard this submit from all.
void Engine::tell_costs(const Registration& registration, std::uint32_t sequence) {
  auto costs = planning_->costs(registration.signature, sequence);
  if (!costs) return;
  if (is_root()) {
    planning_->costs_of(0, *costs);
  } else {
    tell(0, Costs{std::move(*costs)});
  }
}

void Engine::to_root_or_ledger(const Request& request) {
  if (is_root()) {
    ledger_.request(0, request, now_);
  } else {
    tell(0, request);
  }
}

void Engine::to_root_or_ledger(const Ready& ready) {
  if (is_root()) {
    ledger_.ready(0, ready, true, now_);
  } else {
    tell(0, ready);
  }
}

void Engine::on_control(const Event& event) {
  // The session is over here; what was under way from ranks that do not know yet means nothing any more.
  if (failure_ && kind_of(event.bytes) != ControlKind::ping) return;
  switch (kind_of(event.bytes)) {
    case ControlKind::request:
      ledger_.request(event.peer, get_request(event.bytes), now_);
      break;
    case ControlKind::ready:
      ledger_.ready(event.peer, get_ready(event.bytes), true, now_);
      break;
    case ControlKind::verdict:
      on_verdict(get_verdict(event.bytes));
      break;
    case ControlKind::start:
      on_start(get_start(event.bytes));
      break;
    case ControlKind::refuse:
      on_refuse(get_refuse(event.bytes));
      break;
    case ControlKind::window: {
      admission_.allow(event.peer, get_window(event.bytes).units);
      auto& parked = parked_[event.peer];
      const auto open = [&](const Parked& send) { return admission_.may_send(event.peer, send.unit); };
      for (const Parked& send : parked) {
        if (open(send)) policy_->add(send.request);
      }
      std::erase_if(parked, open);
      break;
    }
    case ControlKind::ping:
      tell_plain(event.peer, ControlKind::pong);
      break;
    case ControlKind::pong:
      break;
    case ControlKind::links:
      policy_->control(event.peer, get_links(event.bytes).bytes);
      break;
    case ControlKind::costs:
      if (!is_root())
        throw CorruptPayload(detail::concat("rank ", event.peer, " sent its costs, but only rank 0 plans"));
      planning_->costs_of(event.peer, get_costs(event.bytes).bytes);
      break;
    case ControlKind::abort: {
      const Abort abort = get_abort(event.bytes);
      fail(abort.status, abort.text, false);
      break;
    }
    case ControlKind::bye:
      left_[event.peer] = true;
      heartbeat_.gone(event.peer);
      policy_->left(event.peer);
      if (is_root()) ledger_.left(event.peer);
      // The book is kept by the root: without it nothing more can be agreed. What has begun needs nothing more from it.
      for (std::uint32_t index = 0; event.peer == 0 && index < runs_.size(); ++index) {
        if (runs_[index].active && !runs_[index].begun) finish(index, Status::aborted, "rank 0 has shut down");
      }
      break;
  }
}

std::shared_ptr<const Template> Engine::make_shape(const Signature& signature, const GradientPlan& plan,
                                                   const std::vector<std::int64_t>& rows) const {
  // A world of one is the identity (rule R9), in the gradient's own precision.
  const auto codec = make_codec(members() == 1 ? "none" : plan.codec);
  WorkflowRequest request;
  request.kind = signature.kind;
  request.shape = signature.shape;
  request.dtype = signature.dtype;
  request.codec = codec.get();
  request.topology = plan.topology;
  request.partitions = plan.partitions;
  request.first_owner = plan.first_owner;
  request.member = options_.member;
  request.root = static_cast<std::uint32_t>(signature.root);
  request.host_of = options_.host_of;
  if (signature.kind == OpKind::allgather) {
    request.shape.rows = 0;
    for (const std::int64_t count : rows) {
      request.counts.push_back(count * signature.shape.cols);
      request.shape.rows += count;
    }
  }
  auto shape = std::make_shared<Template>(request);
  shape->codec = codec;
  return shape;
}

void Engine::on_verdict(const Verdict& verdict) {
  const auto at = name_index_.find(verdict.name);
  CASYNC_CHECK(at != name_index_.end(), "a verdict on tensor ", verdict.name, ", which was never submitted here");
  const std::uint32_t index = names_[at->second].runs[verdict.sequence % 2];
  CASYNC_CHECK(index != kNone && runs_[index].sequence == verdict.sequence, "a verdict on a run of ", verdict.name,
               " that is not outstanding");
  Run& run = runs_[index];
  Registration& registration = registrations_[run.registration];
  const bool cached =
      registration.signature.kind == OpKind::allreduce || registration.signature.kind == OpKind::broadcast;
  Op& op = ops_[verdict.op];
  if (op.name == kNone || !cached || !(op.plan == verdict.plan)) {
    op.name = at->second;
    op.plan = verdict.plan;
    op.shape = make_shape(registration.signature, verdict.plan, verdict.rows);
    op.eager = registration.signature.kind == OpKind::allreduce && verdict.plan.topology == Topology::direct &&
               op.shape->codec->info().identity && op.shape->largest_message <= options_.inline_bytes &&
               op.shape->largest_message > 0;  // what sends nothing would not be heard of
  }
  run.op = verdict.op;
  if (cached) registration.op = verdict.op;
  begin(index, op);
  claim_early(verdict.op, index);
}

/// A new plan takes the place of the start, in the one order of starts, so it holds from this run on everywhere. Only
/// for operations that begin by a start on every rank: of a small one, which is sent at once, this run may have begun
/// with the old plan somewhere.
bool Engine::on_new_plan(const Start& start) {
  const Op& op = ops_.at(start.op);
  if (op.eager) return false;
  const Name& name = names_[op.name];
  const std::uint32_t index = name.runs[start.sequence % 2];
  CASYNC_CHECK(index != kNone, "a start of ", name.text, ", which is not outstanding on the root");
  auto plan = planning_->re_plan(name.text, registrations_[runs_[index].registration].signature, op.plan);
  if (!plan) return false;
  const Verdict verdict{name.text, start.sequence, start.op, std::move(*plan), {}};
  tell_all(verdict);
  on_verdict(verdict);
  return true;
}

void Engine::on_start(const Start& start) {
  const auto at = ops_.find(start.op);
  CASYNC_CHECK(at != ops_.end(), "a start of operation ", start.op, ", which was never agreed");
  const std::uint32_t index = names_[at->second.name].runs[start.sequence % 2];
  if (index == kNone || runs_[index].sequence != start.sequence) {
    CASYNC_CHECK(start.sequence < names_[at->second.name].next_sequence,
                 "a start of a run that was never submitted here");
    return;  // eager here, and through: the data of those who were held back overtook the root's message
  }
  if (runs_[index].begun) return;  // eager here, held back elsewhere
  begin(index, at->second);
  claim_early(start.op, index);
}

void Engine::on_refuse(const Refuse& refuse) {
  const auto at = name_index_.find(refuse.name);
  if (at == name_index_.end()) return;
  const std::uint32_t index = names_[at->second].runs[refuse.sequence % 2];
  if (index == kNone || runs_[index].sequence != refuse.sequence) return;  // not submitted here: told again when it is
  for (auto& [number, op] : ops_) {
    if (op.name == at->second) drop_early(op, refuse.sequence);
  }
  finish(index, refuse.status, refuse.text);
}

// ---------------------------------------------------------------------------------------------------------------------
// Running the graph

void Engine::begin(std::uint32_t index, const Op& op) {
  Run& run = runs_[index];
  run.begun = true;
  ++under_way_;
  run.eager = op.eager;
  run.graph.begin(op.shape);
  emit({.kind = ActionKind::begin, .id = index, .value = run.handle});
  const auto partitions = static_cast<std::uint32_t>(run.graph.shape().workflow.partitions.size());
  if (run.graph.done()) {
    finish(index, Status::ok, {});
    return;
  }
  if (run.eager) {
    for (std::uint32_t p = 0; p < partitions; ++p) open(index, p);
    return;
  }
  units_.clear();
  for (std::uint32_t p = 0; p < partitions; ++p) units_.push_back({index, p, run.graph.shape().workflow.reserve[p]});
  run.first_unit = admission_.begin(units_);
}

void Engine::open(std::uint32_t index, std::uint32_t partition) {
  emit({.kind = ActionKind::reserve, .id = index, .task = partition});
  ready_.clear();
  runs_[index].graph.open_partition(partition, ready_);
  for (const std::uint32_t task : ready_) make_ready(index, task);
}

void Engine::make_ready(std::uint32_t index, std::uint32_t task_index) {
  Run& run = runs_[index];
  const Task& task = run.graph.shape().workflow.tasks[task_index];
  switch (task.primitive) {
    case Primitive::encode:
    case Primitive::decode:
    case Primitive::merge:
      emit({.kind = ActionKind::run, .id = index, .task = task_index});
      break;
    case Primitive::send: {
      const auto peer = static_cast<std::uint16_t>(task.peer);
      const SendRequest request{index, task_index, peer, run.graph.shape().message_bytes(task)};
      const std::uint64_t unit = run.first_unit + task.partition;
      if (task.windowed && !run.eager && !admission_.may_send(peer, unit)) {
        parked_[peer].push_back({unit, request});
      } else if (request.bytes <= options_.inline_bytes) {
        emit({.kind = ActionKind::send, .peer = peer, .id = index, .task = task_index});
      } else {
        policy_->add(request);
      }
      break;
    }
    case Primitive::recv: {
      const auto here = [&](const Waiting& waiting) { return waiting.task == task_index; };
      const auto at = std::find_if(run.waiting.begin(), run.waiting.end(), here);
      if (at != run.waiting.end()) {
        const std::uint64_t cookie = at->cookie;
        run.waiting.erase(at);
        emit({.kind = ActionKind::accept, .id = index, .task = task_index, .value = cookie});
      }
      break;
    }
  }
}

void Engine::complete(std::uint32_t index, std::uint32_t task_index) {
  Run& run = runs_[index];
  if (!run.active) return;  // refused or aborted meanwhile
  ready_.clear();
  const std::uint32_t partition = run.graph.shape().workflow.tasks[task_index].partition;
  if (run.graph.complete(task_index, ready_)) {
    emit({.kind = ActionKind::release, .id = index, .task = partition});
    if (!run.eager) admission_.release(run.graph.shape().workflow.reserve[partition]);
  }
  for (const std::uint32_t task : ready_) make_ready(index, task);
  if (run.graph.done()) finish(index, Status::ok, {});
}

void Engine::on_arrived(const Event& event) {
  const auto drop = [&] { emit({.kind = ActionKind::drop, .value = event.value}); };
  if (failure_) {
    drop();
    return;
  }
  Op& op = ops_[event.op];
  const bool known = op.name != kNone;
  // To the root, eager data are the news that their sender has submitted. It may answer by starting or refusing the
  // run.
  const auto report = [&] {
    if (known && is_root() && op.eager) ledger_.ready(event.peer, {event.op, event.sequence}, false, now_);
  };
  if (known && event.sequence < names_[op.name].next_sequence) {
    const std::uint32_t index = names_[op.name].runs[event.sequence % 2];
    if (index == kNone || runs_[index].sequence != event.sequence ||
        (runs_[index].begun && runs_[index].op != event.op)) {
      drop();
      report();
      return;
    }
    if (runs_[index].begun) {
      const std::int64_t task = runs_[index].graph.shape().find_recv(event.peer, event.tag);
      if (task < 0) {
        throw CorruptPayload(detail::concat("rank ", event.peer, " sent message ", event.tag, " of tensor ",
                                            names_[op.name].text, ", which is not part of its plan"));
      }
      place(index, static_cast<std::uint32_t>(task), event.value);
      report();
      return;
    }
  }
  op.early.push_back({event.peer, event.sequence, event.tag, event.value});
  report();
}

void Engine::place(std::uint32_t index, std::uint32_t task, std::uint64_t cookie) {
  Run& run = runs_[index];
  if (run.graph.armed(task)) {
    emit({.kind = ActionKind::accept, .id = index, .task = task, .value = cookie});
  } else {
    run.waiting.push_back({task, cookie});
  }
}

void Engine::claim_early(std::uint32_t op_index, std::uint32_t index) {
  const auto at = ops_.find(op_index);
  if (at == ops_.end() || at->second.early.empty()) return;
  const std::uint32_t sequence = runs_[index].sequence;
  std::vector<Early> mine;
  std::erase_if(at->second.early, [&](const Early& early) {
    const bool matches = early.sequence == sequence;
    if (matches) mine.push_back(early);
    return matches;
  });
  for (const Early& early : mine) {
    // The last message may finish the run, and the instance may be reused at once.
    if (!runs_[index].active || runs_[index].sequence != sequence) return;
    const std::int64_t task = runs_[index].graph.shape().find_recv(early.peer, early.tag);
    if (task < 0)
      throw CorruptPayload(detail::concat("rank ", early.peer, " sent a message that is not part of the plan"));
    place(index, static_cast<std::uint32_t>(task), early.cookie);
  }
}

void Engine::drop_early(Op& op, std::uint32_t up_to) {
  std::erase_if(op.early, [&](const Early& early) {
    if (early.sequence > up_to) return false;
    emit({.kind = ActionKind::drop, .value = early.cookie});
    return true;
  });
}

void Engine::finish(std::uint32_t index, Status status, std::string_view text) {
  Run& run = runs_[index];
  run.active = false;
  --outstanding_;
  if (run.begun) --under_way_;
  eager_under_way_ -= run.eager_bytes;
  for (const Waiting& waiting : run.waiting) emit({.kind = ActionKind::drop, .value = waiting.cookie});
  run.waiting.clear();
  std::uint32_t& slot = names_[run.name].runs[run.sequence % 2];
  if (slot == index) slot = kNone;
  emit({.kind = ActionKind::finish,
        .status = status,
        .id = index,
        .nonfinite = run.nonfinite,
        .value = run.handle,
        .bytes = bytes_of(text)});
  free_runs_.push_back(index);
}

void Engine::fail(Status status, const std::string& text, bool announce) {
  if (failure_) return;
  failure_ = Failure{status, text};
  if (announce) tell_all(Abort{status, text});
  for (std::uint32_t index = 0; index < runs_.size(); ++index) {
    if (runs_[index].active) finish(index, status, text);
  }
  for (auto& [number, op] : ops_) drop_early(op, 0xffffffffU);
}

// ---------------------------------------------------------------------------------------------------------------------
// What follows from a batch of events

void Engine::decide(Nanoseconds now, ActionSink& sink) {
  now_ = now;
  sink_ = &sink;
  if (failure_) return;
  Admission::Unit unit;
  while (admission_.next(unit)) {
    for (const std::uint32_t peer : shape(unit.instance).window_peers[unit.partition]) admission_.want_window(peer);
    open(unit.instance, unit.partition);
  }
  for (const auto& [peer, units] : admission_.windows()) tell(static_cast<std::uint16_t>(peer), Window{units});

  outcome_.clear();
  policy_->decide(now, outcome_);
  for (const SendRequest& request : outcome_.release) {
    emit({.kind = ActionKind::send,
          .peer = request.peer,
          .id = request.instance,
          .task = request.task,
          .value = request.bytes});
  }

  for (auto& [peer, bytes] : outcome_.messages) tell(peer, Links{std::move(bytes)});

  if (now < next_check_) return;
  next_check_ = now + kCheckInterval;
  if (is_root()) ledger_.check(now);
  if (outstanding_ == 0) {
    heartbeat_.rest();
    return;
  }
  const Heartbeat::Outcome beat = heartbeat_.check(now);
  for (const std::uint32_t peer : beat.ask) tell_plain(static_cast<std::uint16_t>(peer), ControlKind::ping);
  if (!beat.lost.empty()) {
    fail(Status::peer_failure, detail::concat(beat.lost.front().second, ", noticed by rank ", options_.member), true);
  }
}

const GradientPlan* Engine::plan_of(std::uint32_t registration) const {
  if (registration >= registrations_.size()) return nullptr;
  const std::uint32_t op = registrations_[registration].op;
  return op == kNone ? nullptr : &ops_.at(op).plan;
}

template <typename Message>
void Engine::tell(std::uint16_t peer, const Message& message) {
  scratch_.clear();
  put(scratch_, message);
  emit({.kind = ActionKind::control, .peer = peer, .bytes = scratch_});
}

template <typename Message>
void Engine::tell_all(const Message& message) {
  Bytes bytes;
  put(bytes, message);
  for (std::uint16_t p = 0; p < members(); ++p) {
    if (p != options_.member) emit({.kind = ActionKind::control, .peer = p, .bytes = bytes});
  }
}

void Engine::tell_plain(std::uint16_t peer, ControlKind kind) {
  scratch_.clear();
  put_plain(scratch_, kind);
  emit({.kind = ActionKind::control, .peer = peer, .bytes = scratch_});
}

}  // namespace casync
