#include "executor/driver.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"
#include "common/shortened.hpp"
#include "executor/run/residuals.hpp"
#include "progress/idle_sleep.hpp"

namespace casync {
namespace {

constexpr std::uint64_t id_of(std::uint32_t instance, std::uint32_t task) {
  return (static_cast<std::uint64_t>(instance) << 32U) | task;
}
constexpr std::uint32_t instance_of(std::uint64_t id) { return static_cast<std::uint32_t>(id >> 32U); }
constexpr std::uint32_t task_of(std::uint64_t id) { return static_cast<std::uint32_t>(id); }

/// The rank whose message an event is.
std::optional<Rank> sender_of(const Event& event) {
  if (const auto* control = std::get_if<event::Control>(&event)) return control->peer;
  if (const auto* message = std::get_if<event::Arrived>(&event)) return message->peer;
  return std::nullopt;
}

std::vector<bool> near_ranks(const Engine& engine, Rank size) {
  std::vector<bool> near;
  for (Rank peer = 0; peer < size; ++peer) near.push_back(engine.on_my_host(static_cast<int>(peer)));
  return near;
}

/// What is being thrown, in words.
std::string text_of_current() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

bool is_pong(std::span<const std::byte> message) {
  return message.size() == 1 && message[0] == static_cast<std::byte>(ControlKind::pong);
}

}  // namespace

Driver::Driver(Engine& engine, Transport& transport, ComputeBackends backends, Planning& planning, Options options,
               Callbacks callbacks)
    : engine_(engine),
      transport_(transport),
      backends_(backends),
      planning_(planning),
      options_(options),
      callbacks_(std::move(callbacks)),
      framer_(transport, options.session_tag, options.checksums),
      tally_(transport.size()),
      meters_(planning, memory_, near_ranks(engine, transport.size()), transport.rank()) {
  CASYNC_CHECK(engine.inline_bytes() <= FrameWriter::room(transport.head_bytes()), "messages of ",
               engine.inline_bytes(), " bytes do not fit into heads of ", transport.head_bytes());
  tally_.look(engine_, memory_, framer_.counters());
  if (backends_.stream != nullptr) add_stream(*backends_.stream, backends_.lane);
}

Driver::~Driver() = default;

void Driver::define(std::uint32_t registration, const Request& definition) {
  std::vector<std::string> codecs;
  guarded([&] {
    if (engine_.failed()) return;
    codecs = planning_.define(definition.name, definition.signature);
    meters_.look();
  });
  apply(event::Define{registration, definition});
  for (const std::string& codec : codecs) start(std::make_unique<CodecTrial>(codec));
}

void Driver::forget(std::uint32_t registration, const Definition& definition) {
  gradients_.forget(definition);
  planning_.forget(definition.name, definition.signature);
  apply(event::Forget{registration});
}

void Driver::submit(std::uint32_t registration, Operation* operation) {
  const std::uint32_t handle = operations_.add(*operation);
  guarded([&] { prepare_submit(*operation); });
  const Definition& definition = *operation->definition;
  apply(event::Submit{registration, handle, memory_.store().settled(definition), memory_.store().steps(definition.name),
                      operation->rows, operation->on_stream, operation->by_lane, operation->splits});
}

/// What comes before the Engine hears of it.
void Driver::prepare_submit(Operation& operation) {
  tally_.submitted();
  if (engine_.failed()) return;
  CASYNC_CHECK(!operation.on_stream || backends_.stream != nullptr, "an operation for a stream, and there is none");
  if (meters_.begins_step(operation) && planning_.step_began(now_, !engine_.someone_joined())) plans_changed();
  meters_.submitted(operation);
  if (meters_.wanted()) {
    try_codecs(operation);
    // Before the submit itself is told, so that the root knows all ranks' costs when it has heard this submit from all.
    const auto costs = planning_.costs(operation.definition->signature, operation.step);
    if (costs) apply(event::CostsKnown{*costs});
    meters_.look();
  }
}

void Driver::abort(const std::string& why) {
  give_up({.text = why, .facts = {.kind = ErrorKind::aborted, .peer = self()}});
}

/// The text goes to all ranks.
void Driver::give_up(Abort why) {
  why.text = shortened(std::move(why.text));
  apply(event::GiveUp{why});
}

/// `work()`. What it throws is a fault of our own, or there is no memory: it ends the session. If that has ended
/// already, there is nothing more to be said to the Engine.
template <typename Work>
void Driver::guarded(const Work& work) {
  try {
    work();
  } catch (...) {
    if (engine_.failed()) throw;
    has_thrown_ = true;
    give_up({.text = text_of_current(), .facts = {.kind = ErrorKind::fault, .peer = self()}});
  }
}

/// What the Engine has lost ends as well, as soon as no job touches its memory.
void Driver::end_strays() {
  if (!has_thrown_ || !engine_.failed() || jobs_out_ > 0) return;
  const Abort why = engine_.failure();
  for (Operation* const operation : operations_.take_all()) end(*operation, why);
}

void Driver::end(Operation& operation, const Abort& why) {
  try {
    operation.status = why.status;
    operation.text = why.text;
    operation.facts = std::make_unique<ErrorFacts>(why.facts);
    operation.facts->tensor = operation.definition->name;
    operation.facts->op = operation.definition->signature.kind;
    callbacks_.finished(operation);
  } catch (...) {
    operation.done.store(true, std::memory_order_release);  // who waits for it does not do so for ever
  }
}

void Driver::collapse(const std::string& why, Inbox& came, const std::function<void()>& stop) {
  collapsed_ = Abort{.text = shortened(why), .facts = {.kind = ErrorKind::fault, .peer = self()}};
  if (engine_.failed()) collapsed_ = engine_.failure();  // what came first
  try {
    Bytes message;
    put(message, *collapsed_);
    for (Rank peer = 0; peer < transport_.size(); ++peer) {
      if (peer != self()) framer_.control(peer, message);
    }
    framer_.flush();
  } catch (...) {  // they hear that this rank has gone
  }
  stop();
  for (Operation* const operation : operations_.take_all()) end(*operation, *collapsed_);
  turn(came, now_);
}

void Driver::add_stream(Stream& stream, DeviceLane* lane) {
  backends_.stream = &stream;
  backends_.lane = lane;
  memory_.add(stream.shared(), stream.own());
  if (lane == nullptr) return;
  framer_.add_lane(*lane);
  lane->open([this](Rank peer, std::span<const std::byte> message) { framer_.lane(peer, message); });
  for (const auto& [peer, message] : std::exchange(lane_heard_, {})) on_lane(peer, message);
}

void Driver::shutdown() {
  planning_.closing();
  apply(event::Shutdown{});
}

void Driver::plans_changed() { apply(event::PlansChanged{}); }

void Driver::finished(std::unique_ptr<Job> job, std::string error) {
  if (const auto work = std::move(job->plan_work)) {
    finished(*work, error);
    spare_jobs_.push_back(std::move(job));
    return;
  }
  if (const auto trial = std::move(job->trial)) {
    for (const Measurement& measurement : trial->results()) meters_.measured(measurement);
    if (trial->size()) meters_.measured(*trial->size());
    if (!error.empty()) {
      give_up({.text = "a trial run of a codec failed: " + error, .facts = {.kind = ErrorKind::fault, .peer = self()}});
    }
    spare_jobs_.push_back(std::move(job));
    return;
  }
  --jobs_out_;
  const std::uint32_t instance = job->instance;
  const TaskGraph& graph = memory_.graph(instance);
  const Task& task = graph.workflow.tasks[job->task];
  tally_.computed(instance, task.primitive, job->time);
  std::optional<Abort> failure;
  std::uint64_t bytes = 0;
  if (!error.empty()) failure = failure_of(*job, std::move(error));
  if (memory_.active(instance)) {  // else it was refused meanwhile
    const bool ran = !failure;
    if (ran && task.settles && task.primitive == Primitive::merge) {
      if (job->settled) memory_.kept_of(instance)->agree();
    } else if (ran && task.encode_to.kind == BufferKind::slot) {
      memory_.set_slot_bytes(instance, task.encode_to.slot, job->segment.payload_bytes);
    }
    if (task.encode_to.kind == BufferKind::slot) bytes = memory_.slot_bytes(instance, task.encode_to.slot);
    if (ran) {
      meters_.computed(*job, task);
      meters_.encoded(instance, task, bytes);
    }
    if (!job->nonfinite.empty()) note_nonfinite(graph, *job);
  }
  const bool nonfinite = task.deliver && job->segment.nonfinite;
  apply(event::Ran{instance, job->task, bytes, nonfinite, failure ? &*failure : nullptr});
  spare_jobs_.push_back(std::move(job));
}

void Driver::finished(PlanWork& work, const std::string& error) {
  if (engine_.failed()) return;  // there will be no more plans
  if (!error.empty()) {
    give_up({.text = "planning failed: " + error, .facts = {.kind = ErrorKind::fault, .peer = self()}});
    return;
  }
  if (planning_.worked(work)) plans_changed();
  const auto other = std::ranges::stable_partition(waiting_, [&](const auto& one) { return one.first != &work; });
  for (auto& [before, gradient] : other) wanted_.push_back(std::move(gradient));
  waiting_.erase(other.begin(), other.end());
}

/// A payload that a codec refuses is its sender's fault; any other failure of a job is this rank's.
Abort Driver::failure_of(const Job& job, std::string error) {
  Abort why{.text = std::move(error), .facts = {.kind = ErrorKind::fault, .peer = self()}};
  if (!memory_.active(job.instance)) return why;
  const TaskGraph& graph = memory_.graph(job.instance);
  const Task& task = graph.workflow.tasks[job.task];
  const Definition& definition = *memory_.operation(job.instance).definition;
  why.facts.tensor = definition.name;
  why.facts.op = definition.signature.kind;
  if (job.device_failed) {
    why.facts.kind = ErrorKind::device;
    return why;
  }
  why.text = detail::concat(name_of(task.primitive), " of tensor ", definition.name, " failed: ", why.text);
  const std::int64_t sender = job.refused == Job::kNone ? -1 : graph.sender_of(task, job.refused);
  if (sender < 0) return why;
  why.status = Status::corrupt;
  why.facts.kind = ErrorKind::corrupt_payload;
  why.facts.peer = static_cast<std::uint32_t>(sender);
  why.text = detail::concat("bytes from rank ", sender, ": ", why.text, noticed());
  return why;
}

/// Whose contribution it was. A sum that came is its sender's to tell, as is the result that a decode delivers and what
/// is not encoded from a gradient; after a codec's first round everybody has what one rank began with.
void Driver::note_nonfinite(const TaskGraph& graph, const Job& job) {
  const Task& task = graph.workflow.tasks[job.task];
  if (task.primitive == Primitive::decode || task.round > 0 || task.form != Form::payload) return;
  std::vector<std::uint32_t>& ranks = memory_.operation(job.instance).nonfinite_ranks;
  for (const std::size_t source : job.nonfinite) {
    const Task* const receive = graph.receive_of(task, source);
    if (receive != nullptr && receive->combined) continue;
    if (receive == nullptr && graph.workflow.sources[task.first_source + source].kind != BufferKind::input) continue;
    const std::uint32_t rank = receive == nullptr ? self() : receive->peer;
    if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
  }
}

void Driver::start(std::unique_ptr<CodecTrial> trial) {
  std::vector<std::unique_ptr<Job>> batch;
  batch.push_back(new_job());
  batch.back()->trial = std::move(trial);
  backends_.pool.run(std::move(batch));
}

/// The planning goes on when it has run.
void Driver::start(std::unique_ptr<PlanWork> work) {
  auto job = new_job();
  job->plan_work = std::move(work);
  if (backends_.planner == nullptr) {
    std::string error = job->run();
    finished(std::move(job), std::move(error));
    return;
  }
  std::vector<std::unique_ptr<Job>> batch;
  batch.push_back(std::move(job));
  backends_.planner->run(std::move(batch));
}

/// Before the operation begins: afterwards its result may take the gradient's place.
void Driver::try_codecs(const Operation& operation) {
  const auto& [name, signature, hash] = *operation.definition;
  if (operation.stands_in || operation.staged != nullptr) return;  // not a gradient, or not one of the host's memory
  for (const std::string& codec : planning_.to_try(name, signature, operation.step)) {
    start(std::make_unique<CodecTrial>(codec,
                                       GradientCopy(name, signature.dtype, signature.shape.numel(), operation.input)));
  }
}

/// Asks a peer for an answer while both are at work, to see how long that takes. To send it is no decision of the
/// Engine: the answer tells its heartbeat only that the peer lives.
void Driver::ping() {
  if (!engine_.under_way() || engine_.failed()) return;
  const std::optional<Rank> peer = meters_.to_ping();
  if (!peer) return;
  Bytes message;
  put_plain(message, ControlKind::ping);
  framer_.control(*peer, message);
}

/// Does what the Engine wants of the planning.
void Driver::plan() {
  if (wanted_.empty() && costs_.empty()) return;
  std::vector<event::Planned::Plan> plans;
  try {
    for (const auto& [member, costs] : std::exchange(costs_, {})) hear_costs(member, costs);
    if (auto work = planning_.work()) start(std::move(work));
    for (auto& gradient : std::exchange(wanted_, {})) {
      const auto& [op, name, signature, current, step] = gradient;
      if (auto work = planning_.work_for(name, signature, step)) {
        waiting_.emplace_back(work.get(), std::move(gradient));
        start(std::move(work));
      } else if (current) {
        plans.push_back({op, planning_.re_plan(name, signature, *current, step)});
      } else {
        plans.push_back({op, planning_.plan(name, signature, step)});
      }
    }
  } catch (const std::exception& error) {
    give_up({.text = error.what(), .facts = {.kind = ErrorKind::fault, .peer = self()}});
    return;
  }
  if (!plans.empty()) apply(event::Planned{plans});
}

void Driver::hear_costs(Rank member, const Bytes& costs) {
  try {
    planning_.costs_of(member, costs);
  } catch (const CorruptPayload& error) {
    on_corrupt(member, error.what(), {});
  }
}

bool Driver::turn(Inbox& came, Nanoseconds now) {
  now_ = now;
  const bool news = !came.items.empty() || !came.jobs.empty();
  for (Inbox::Item& item : came.items) {
    guarded([&] { take(item); });
  }
  came.items.clear();
  if (collapsed_) came.jobs.clear();
  for (auto& [job, error] : came.jobs) {
    guarded([&] { finished(std::move(job), std::move(error)); });
  }
  came.jobs.clear();
  return (!collapsed_ && turn(now)) || news;
}

void Driver::take(Inbox::Item& item) {
  Operation* const operation = std::exchange(item.operation, nullptr);  // from now on it is known here
  switch (item.kind) {
    case Inbox::Item::Kind::define:
      if (!collapsed_) define(item.registration, *item.definition);
      break;
    case Inbox::Item::Kind::submit:
      if (collapsed_ && operation != nullptr) end(*operation, *collapsed_);
      if (!collapsed_) submit(item.registration, operation);
      break;
    case Inbox::Item::Kind::abort:
      if (!collapsed_) abort(*item.why);
      break;
    case Inbox::Item::Kind::forget:
      if (!collapsed_) forget(item.registration, *item.forgotten);
      break;
  }
}

Nanoseconds Driver::sleep_time(Nanoseconds now, Nanoseconds last_news) const {
  const auto wakes_at = engine_.wakes_at();
  return idle_sleep({.outstanding = engine_.outstanding(),
                     .moving = transport_.moving() || (backends_.lane != nullptr && backends_.lane->moving()),
                     .rung = transport_.wakes(),
                     .heard = transport_.hears() && backends_.lane == nullptr,
                     .since_news = now - last_news,
                     .due = wakes_at ? std::optional(*wakes_at - now) : std::nullopt});
}

bool Driver::turn(Nanoseconds now) {
  now_ = now;
  bool busy = false;
  guarded([&] { busy = carry_on(); });
  // What has failed in the middle of it is told and ended now.
  if (has_thrown_) {
    settle();
    framer_.flush();
    end_strays();
  }
  return busy;
}

bool Driver::carry_on() {
  const Nanoseconds now = now_;
  if (backends_.stream != nullptr && !backends_.stream->failure().empty() && !engine_.failed())
    give_up({.text = backends_.stream->failure(), .facts = {.kind = ErrorKind::device, .peer = self()}});
  bool busy = poll_network();
  if (backends_.lane != nullptr) busy |= poll_lane();
  busy |= !pending_.empty();
  settle();
  if (engine_.watches()) look_at_flows();
  do {
    for (Observer* observer : options_.observers) observer->on_decide(now);
    guarded([&] { engine_.decide(now, *this); });
    for (Observer* observer : options_.observers) observer->on_return();
  } while (settle());  // what has settled may have freed memory or a link
  if (meters_.wanted()) ping();
  framer_.flush();
  tally_.look(engine_, memory_, framer_.counters());
  return busy;
}

bool Driver::poll_network() {
  const Meters::TransportCall call(meters_);
  return transport_.poll(*this);
}

/// What moves slowly is no event for long. Where that cannot be seen, what is under way moves.
void Driver::look_at_flows() {
  constexpr Nanoseconds kInterval = 200'000'000;
  if (now_ < next_flows_) return;
  next_flows_ = now_ + kInterval;
  flowed_.resize(transport_.size());
  const bool lane_moves = backends_.lane != nullptr && backends_.lane->moving();
  std::vector<Rank> peers;
  for (Rank peer = 0; peer < transport_.size(); ++peer) {
    if (peer == self()) continue;
    const auto flowed = transport_.flowed(peer);
    const bool moves = flowed ? std::exchange(flowed_[peer], *flowed) != *flowed : transport_.moving();
    if (moves || lane_moves) peers.push_back(peer);
  }
  if (!peers.empty()) apply(event::Flowed{peers});
}

bool Driver::poll_lane() {
  const bool busy = backends_.lane->poll(*this);
  if (!backends_.lane->failure().empty() && !engine_.failed())
    give_up({.text = backends_.lane->failure(), .facts = {.kind = ErrorKind::device, .peer = self()}});
  return busy;
}

void Driver::apply(const Event& event) {
  for (Observer* observer : options_.observers) observer->on_event(event, now_);
  try {
    engine_.apply(event, now_, *this);
  } catch (const CorruptPayload& error) {
    // A message that no correct peer sends: the session cannot go on, but it ends with a text on every rank.
    if (engine_.failed()) throw;
    ErrorFacts facts = error.facts;
    if (!facts.peer) facts.peer = sender_of(event);
    give_up({.status = Status::corrupt, .text = detail::concat(error.what(), noticed()), .facts = std::move(facts)});
  } catch (const std::exception& error) {
    // A fault of our own, or there is no memory.
    if (engine_.failed()) throw;
    has_thrown_ = true;
    give_up({.text = error.what(), .facts = {.kind = ErrorKind::fault, .peer = self()}});
  }
  for (Observer* observer : options_.observers) observer->on_return();
}

/// Carries on until nothing follows any more: small jobs and sends complete within the turn. Returns whether anything
/// did.
bool Driver::settle() {
  bool applied = false;
  while (!pending_.empty() || !at_once_.empty() || !wanted_.empty() || !costs_.empty() || corrupt_) {
    applied = true;
    plan();
    if (corrupt_) give_up(*std::exchange(corrupt_, {}));
    std::vector<Event> events;
    events.swap(pending_);
    for (const Event& event : events) apply(event);
    if (pending_.empty()) run_at_once();
  }
  return applied;
}

void Driver::emit(const Action& action) {
  for (Observer* observer : options_.observers) observer->on_action(action);
  std::visit([this](const auto& what) { on(what); }, action);
}

void Driver::on(const action::Begin& action) {
  tally_.begun(action.instance, *action.graph);
  Operation& operation = operations_.at(action.handle);
  meters_.begun(action, operation, now_);
  gradients_.begun(action, *operation.definition, now_);
  memory_.begin(action, operation);
  if (operation.on_stream &&
      !backends_.stream->supports(*action.graph, operation.definition->signature, action.by_lane))
    backends_.stream->fetch(operation);
  if (transport_.size() > 1) take_over(memory_, *action.graph, action.instance, context_of(action.instance));
}

void Driver::on(const action::Reserve& action) { memory_.reserve(action.instance, action.partition); }

void Driver::on(const action::Release& action) { memory_.release(action.instance, action.partition); }

void Driver::on(const action::Run& action) {
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.reserve(action.batch.size());
  for (const auto& [instance, task] : action.batch) {
    tally_.queued();
    jobs.push_back(new_job());
    prepare(*jobs.back(), memory_, memory_.graph(instance), instance, task, context_of(instance));
  }
  jobs_out_ += action.batch.size();
  switch (action.where) {
    case action::Where::at_once:
      std::ranges::move(jobs, std::back_inserter(at_once_));
      break;
    case action::Where::pool:
      backends_.pool.run(std::move(jobs));
      break;
    case action::Where::stream:
      backends_.stream->run(std::move(jobs));
      for (const auto& [instance, task] : action.batch) pending_.push_back(event::Launched{instance, task});
      break;
  }
}

void Driver::on(const action::Send& action) {
  const TaskGraph& graph = memory_.graph(action.instance);
  const Task& task = graph.workflow.tasks[action.task];
  const MessageBytes bytes = bytes_of_message(graph, memory_, action.instance, task);
  tally_.sent(action.instance, task.peer, bytes);
  const bool encoded = !graph.raw(task.data);
  const MemoryRef data = memory_.message(action.instance, task.partition, task.data, bytes.wire);
  const std::uint64_t id = id_of(action.instance, action.task);
  switch (action.way) {
    case action::Send::Way::in_head:
      framer_.send_in_head(action.peer, action.key, data.span(), encoded);
      pending_.push_back(event::Sent{action.instance, action.task});
      break;
    case action::Send::Way::as_body: {
      const Meters::TransportCall call(meters_);
      const Nanoseconds begun = meters_.wanted() ? steady_now() : 0;
      framer_.send_body(action.peer, action.key, data, encoded, id);
      meters_.sent(action.peer, bytes.wire, begun);
      tally_.flows();
      break;
    }
    case action::Send::Way::in_bulk:
      framer_.add_to_bulk(action.key, data.span(), encoded, id);
      break;
  }
}

void Driver::on(const action::SendBulk& action) {
  framer_.send_bulk(action.peer);
  tally_.flows();
}

void Driver::on(const action::Accept& action) {
  const TaskGraph& graph = memory_.graph(action.instance);
  const Task& task = graph.workflow.tasks[action.task];
  const MemoryRef memory = memory_.message(action.instance, task.partition, task.data, graph.message_bytes(task));
  const Meters::TransportCall call(meters_);
  framer_.place(action.message_id, memory, graph.fills(task.data), id_of(action.instance, action.task), *this);
}

void Driver::on(const action::Drop& action) { framer_.drop(action.message_id, *this); }

void Driver::on(const action::Finish& action) {
  if (!operations_.has(action.handle)) return;  // it ended without the Engine
  Operation& operation = operations_.at(action.handle);
  operation.nonfinite = action.nonfinite;
  operation.status = action.failure == nullptr ? Status::ok : action.failure->status;
  if (action.failure == nullptr) {
    tally_.ended(action.instance, raw_bytes_of(operation));
    meters_.ended(action.instance, operation, now_);
    gradients_.ended(action.instance, operation.ready, meters_.encoded_in(action.instance), now_);
  } else {
    tally_.failed();
    if (action.run != nullptr) meters_.failed(operation, now_);
    operation.text = action.failure->text;
    operation.facts = std::make_unique<ErrorFacts>(action.failure->facts);
  }
  if (action.run != nullptr) {
    if (action.failure != nullptr) {
      if (action.session_is_over) framer_.flush();  // the peers hear of it before this takes its time
      give_back(memory_, *action.run, action.instance, context_of(action.instance));
    }
    memory_.finish(action.instance, action.session_is_over);
  }
  if (operation.fetched) backends_.stream->restore(operation);
  callbacks_.finished(operation);
  operations_.remove(action.handle);
}

void Driver::on(const action::Control& action) { framer_.control(action.peer, action.message); }

void Driver::on(const action::Report& action) { callbacks_.report(action.stall); }

void Driver::on(const action::PlanWanted& action) {
  wanted_.insert(wanted_.end(), action.gradients.begin(), action.gradients.end());
}

void Driver::on(const action::CostsOf& action) {
  costs_.emplace_back(action.member, Bytes(action.costs.begin(), action.costs.end()));
}

void Driver::on(const action::StandInFor& action) { callbacks_.stand_in(action.definition); }

ComputeContext Driver::context_of(std::uint32_t instance) {
  const Operation& operation = memory_.operation(instance);
  return {transport_.size(), self(), memory_.step(instance),
          operation.on_stream && !operation.fetched ? backends_.stream : nullptr};
}

void Driver::run_at_once() {
  if (at_once_.empty()) return;
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.swap(at_once_);
  errors_.clear();
  {
    const Meters::Jobs running(meters_);
    run_all(jobs, errors_);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    guarded([&] { finished(std::move(jobs[i]), std::move(errors_[i])); });
  }
}

std::unique_ptr<Job> Driver::new_job() {
  if (spare_jobs_.empty()) return std::make_unique<Job>();
  auto job = std::move(spare_jobs_.back());
  spare_jobs_.pop_back();
  return job;
}

void Driver::on_head(Rank peer, std::span<const std::byte> head) {
  try {
    framer_.take(peer, head, *this);
  } catch (const CorruptPayload& error) {
    on_corrupt(peer, error.what(), {});
  }
}

void Driver::on_sent(std::uint64_t id) {
  tally_.flowed();
  framer_.left(
      id, [this](std::uint64_t message) { pending_.push_back(event::Sent{instance_of(message), task_of(message)}); });
}

void Driver::on_body(std::uint64_t id) { framer_.received(id, *this); }

void Driver::on_peer_down(Rank peer, std::string_view why) { apply(event::PeerDown{peer, why}); }

void Driver::on_control(Rank peer, std::span<const std::byte> message) {
  if (is_pong(message)) meters_.pong(peer);
  apply(event::Control{peer, message});
}

void Driver::on_lane(Rank peer, std::span<const std::byte> message) {
  if (backends_.lane == nullptr) {
    lane_heard_.emplace_back(peer, Bytes(message.begin(), message.end()));
    return;
  }
  try {
    backends_.lane->hear(peer, message);
  } catch (const CorruptPayload& error) {
    on_corrupt(peer, error.what(), {});
  }
}

void Driver::on_message(Rank peer, const MessageKey& key, std::uint64_t message_id) {
  apply(event::Arrived{peer, key, message_id});
}

void Driver::on_placed(std::uint64_t id, std::size_t bytes) {
  const std::uint32_t instance = instance_of(id);
  if (!memory_.active(instance)) return;
  const Task& task = memory_.graph(instance).workflow.tasks[task_of(id)];
  if (task.data.kind == BufferKind::slot) memory_.set_slot_bytes(instance, task.data.slot, bytes);
  tally_.received(instance, task.peer, bytes_of_message(memory_.graph(instance), memory_, instance, task));
  pending_.push_back(event::Received{instance, task_of(id), bytes});
}

void Driver::on_body_begun(Rank peer) { meters_.body_begun(peer, now_); }

void Driver::on_body_done(Rank peer, std::size_t bytes) { meters_.body_done(peer, bytes, now_); }

void Driver::on_corrupt(Rank peer, std::string_view why, std::optional<std::uint64_t> id) {
  // The Engine may be in the middle of an event: it hears of this after it.
  if (corrupt_) return;
  ErrorFacts facts{.kind = ErrorKind::corrupt_payload, .peer = peer};
  std::string of;
  if (id && memory_.active(instance_of(*id))) {
    const Definition& definition = *memory_.operation(instance_of(*id)).definition;
    facts.tensor = definition.name;
    facts.op = definition.signature.kind;
    of = " of tensor " + definition.name;
  }
  corrupt_ = Abort{.status = Status::corrupt,
                   .text = detail::concat("bytes", of, " from rank ", peer, ": ", why, noticed()),
                   .facts = std::move(facts)};
}

/// Which rank it was that says so: the text goes to all.
std::string Driver::noticed() const { return detail::concat(", noticed by rank ", transport_.rank()); }

}  // namespace casync
