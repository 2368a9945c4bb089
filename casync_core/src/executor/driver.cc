#include "executor/driver.hpp"

#include <algorithm>
#include <utility>

#include "casync/error.hpp"
#include "executor/residuals.hpp"

namespace casync {
namespace {

constexpr std::uint64_t id_of(std::uint32_t instance, std::uint32_t task) {
  return (static_cast<std::uint64_t>(instance) << 32U) | task;
}
constexpr std::uint32_t instance_of(std::uint64_t id) { return static_cast<std::uint32_t>(id >> 32U); }
constexpr std::uint32_t task_of(std::uint64_t id) { return static_cast<std::uint32_t>(id); }

}  // namespace

Driver::Driver(Engine& engine, Transport& transport, Workers& workers, Options options, Callbacks callbacks)
    : engine_(engine),
      transport_(transport),
      workers_(workers),
      options_(options),
      callbacks_(std::move(callbacks)),
      framer_(transport, options.session_tag, engine.inline_bytes(), options.contents),
      tally_(static_cast<std::size_t>(transport.size())) {
  tally_.look(engine_, memory_, transport_.counters());
}

Driver::~Driver() = default;

void Driver::define(std::uint32_t registration, const Request& definition) {
  Bytes bytes;
  put_definition(bytes, definition);
  apply({.kind = EventKind::define, .id = registration, .bytes = bytes});
}

void Driver::submit(std::uint32_t registration, Operation* operation) {
  tally_.submitted();
  apply({.kind = EventKind::submit,
         .id = registration,
         .sequence = memory_.steps(operation->definition->name),
         .tag = memory_.settled(*operation->definition),
         .size = static_cast<std::uint64_t>(operation->rows),
         .value = reinterpret_cast<std::uint64_t>(operation),
         .bytes = std::as_bytes(std::span(operation->splits))});
}

void Driver::abort(const std::string& why) {
  give_up({.text = why, .facts = {.kind = ErrorKind::aborted, .peer = self()}});
}

void Driver::give_up(const Abort& why) {
  Bytes bytes;
  put(bytes, why);
  apply({.kind = EventKind::abort, .status = why.status, .bytes = bytes});
}

void Driver::shutdown() { apply({.kind = EventKind::shutdown}); }

void Driver::finished(std::unique_ptr<Job> job, std::string error) {
  if (const auto trial = std::move(job->trial)) {
    for (const Measurement& measurement : trial->results()) measured(measurement);
    if (!error.empty()) {
      give_up({.text = "a trial run of a codec failed: " + error, .facts = {.kind = ErrorKind::fault, .peer = self()}});
    }
    spare_jobs_.push_back(std::move(job));
    return;
  }
  const std::uint32_t instance = job->instance;
  const Template& shape = engine_.shape(instance);
  const Task& task = shape.workflow.tasks[job->task];
  tally_.computed(instance, task.primitive, job->time);
  Bytes failure;
  Status status = Status::ok;
  if (!error.empty()) {
    const Abort why = failure_of(*job, std::move(error));
    status = why.status;
    put(failure, why);
  }
  if (memory_.active(instance)) {  // else it was refused meanwhile
    const bool ran = status == Status::ok;
    if (ran && task.settles && task.primitive == Primitive::merge) {
      if (job->settled || !options_.contents) memory_.kept_of(instance)->agree();
    } else if (ran && task.encode_to.place == Place::slot) {
      memory_.set_slot_bytes(instance, task.encode_to.slot, job->segment.payload_bytes);
    }
    if (!job->nonfinite.empty()) note_nonfinite(shape, *job);
  }
  apply({.kind = EventKind::ran,
         .status = status,
         .flag = task.deliver && job->segment.nonfinite,
         .id = instance,
         .task = job->task,
         .bytes = failure});
  spare_jobs_.push_back(std::move(job));
}

/// A payload that a codec refuses is its sender's fault; any other failure of a job is this rank's.
Abort Driver::failure_of(const Job& job, std::string error) {
  Abort why{.text = std::move(error), .facts = {.kind = ErrorKind::fault, .peer = self()}};
  if (!memory_.active(job.instance)) return why;
  const Template& shape = engine_.shape(job.instance);
  const Task& task = shape.workflow.tasks[job.task];
  const Definition& definition = *memory_.operation(job.instance).definition;
  why.facts.tensor = definition.name;
  why.facts.op = definition.signature.kind;
  why.text = detail::concat(name_of(task.primitive), " of tensor ", definition.name, " failed: ", why.text);
  const std::int64_t sender = job.refused == Job::kNone ? -1 : shape.sender_of(task, job.refused);
  if (sender < 0) return why;
  why.status = Status::corrupt;
  why.facts.kind = ErrorKind::corrupt_payload;
  why.facts.peer = static_cast<std::uint32_t>(sender);
  why.text = detail::concat("bytes from rank ", sender, ": ", why.text, noticed());
  return why;
}

/// Whose contribution it was. A sum that came is its sender's to tell, as is the result that a decode delivers; after a
/// codec's first round everybody has what one rank began with.
void Driver::note_nonfinite(const Template& shape, const Job& job) {
  const Task& task = shape.workflow.tasks[job.task];
  if (task.primitive == Primitive::decode || task.round > 0) return;
  std::vector<std::uint32_t>& ranks = memory_.operation(job.instance).nonfinite_ranks;
  for (const std::size_t source : job.nonfinite) {
    const Task* const receive = shape.receive_of(task, source);
    if (receive != nullptr && receive->combined) continue;
    if (receive == nullptr && shape.workflow.sources[task.first_source + source].place != Place::input) continue;
    const std::uint32_t rank = receive == nullptr ? static_cast<std::uint32_t>(transport_.rank()) : receive->peer;
    if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
  }
}

void Driver::measured(const Measurement& measurement) {
  if (!engine_.measuring()) return;
  apply({.kind = EventKind::measured,
         .task = static_cast<std::uint32_t>(measurement.kind),
         .size = static_cast<std::uint64_t>(measurement.bytes),
         .value = static_cast<std::uint64_t>(measurement.seconds * 1e9),
         .bytes = bytes_of(measurement.codec)});
}

bool Driver::turn(Nanoseconds now) {
  now_ = now;
  bool busy = transport_.poll(*this);
  busy |= !pending_.empty();
  settle();
  do {
    for (Observer* observer : options_.observers) observer->on_decide(now);
    engine_.decide(now, *this);
  } while (settle());  // what has settled may have freed memory or a link
  framer_.flush();
  tally_.look(engine_, memory_, transport_.counters());
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
    const bool came = event.kind == EventKind::control || event.kind == EventKind::arrived;
    if (!facts.peer && came) facts.peer = event.peer;
    give_up({.status = Status::corrupt, .text = detail::concat(error.what(), noticed()), .facts = std::move(facts)});
  } catch (const std::exception& error) {
    // A fault of our own, or there is no memory.
    if (engine_.failed()) throw;
    give_up({.text = error.what(), .facts = {.kind = ErrorKind::fault, .peer = self()}});
  }
}

/// Carries on until nothing follows any more: small jobs and sends complete within the turn. Returns whether anything
/// did.
bool Driver::settle() {
  bool applied = false;
  while (!pending_.empty() || !jobs_.empty() || corrupt_) {
    applied = true;
    if (corrupt_) give_up(*std::exchange(corrupt_, {}));
    std::vector<Event> events;
    events.swap(pending_);
    for (const Event& event : events) apply(event);
    if (pending_.empty()) start_jobs();
  }
  return applied;
}

void Driver::emit(const Action& action) {
  for (Observer* observer : options_.observers) observer->on_action(action);
  switch (action.kind) {
    case ActionKind::begin:
      tally_.begun(action.id, engine_.shape(action.id));
      memory_.begin(action.id, engine_.shape(action.id), reinterpret_cast<Operation*>(action.value));
      if (transport_.size() > 1) take_over(memory_, engine_.shape(action.id), action.id, context_of(action.id));
      break;
    case ActionKind::reserve:
      memory_.reserve(action.id, action.task);
      break;
    case ActionKind::release:
      memory_.release(action.id, action.task);
      break;
    case ActionKind::run: {
      tally_.queued();
      auto job = new_job();
      prepare(*job, memory_, engine_.shape(action.id), action.id, action.task, context_of(action.id));
      jobs_bytes_ += job->weight;
      largest_job_ = std::max(largest_job_, job->weight);
      jobs_.push_back(std::move(job));
      break;
    }
    case ActionKind::send:
      start_send(action);
      break;
    case ActionKind::accept: {
      const Template& shape = engine_.shape(action.id);
      const Task& task = shape.workflow.tasks[action.task];
      const std::size_t bytes = shape.message_bytes(task);
      const bool fills = shape.raw(task.data) || shape.codec->info().fixed_size;
      framer_.place(action.value, {memory_.address(action.id, task.partition, task.data), bytes}, fills,
                    id_of(action.id, action.task), *this);
      break;
    }
    case ActionKind::drop:
      framer_.drop(action.value, *this);
      break;
    case ActionKind::finish:
      finish(action);
      break;
    case ActionKind::control:
      framer_.control(action.peer, action.bytes);
      break;
    case ActionKind::measure: {
      std::vector<std::unique_ptr<Job>> batch;
      batch.push_back(new_job());
      batch.back()->trial = std::make_unique<Trial>(text_of(action.bytes));
      workers_.run(std::move(batch));
      break;
    }
    case ActionKind::stand_in:
      callbacks_.stand_in(get_definition(action.bytes));
      break;
    case ActionKind::report:
      callbacks_.report(get_stall(action.bytes));
      break;
  }
}

void Driver::finish(const Action& action) {
  auto& operation = *reinterpret_cast<Operation*>(action.value);
  operation.status = action.status;
  operation.nonfinite = action.nonfinite;
  if (action.status == Status::ok) {
    tally_.ended(action.id, raw_bytes_of(operation));
  } else {
    tally_.failed();
    Abort why = get_abort(action.bytes);
    operation.text = std::move(why.text);
    operation.facts = std::make_unique<ErrorFacts>(std::move(why.facts));
  }
  if (memory_.active(action.id)) {
    if (action.status != Status::ok && options_.contents) {
      if (engine_.failed()) framer_.flush();  // the peers hear of it before this takes its time
      give_back(memory_, engine_.graph(action.id), action.id, context_of(action.id));
    }
    memory_.finish(action.id, engine_.failed());
  }
  callbacks_.finished(operation);
}

ComputeContext Driver::context_of(std::uint32_t instance) const {
  return {static_cast<std::uint32_t>(transport_.size()), static_cast<std::uint16_t>(transport_.rank()),
          engine_.step_of(instance), options_.contents};
}

void Driver::start_send(const Action& action) {
  const Template& shape = engine_.shape(action.id);
  const Task& task = shape.workflow.tasks[action.task];
  const MessageBytes bytes = bytes_of_message(shape, memory_, action.id, task);
  tally_.sent(action.id, task.peer, bytes);
  const bool encoded = !shape.raw(task.data);
  const MessageName name{engine_.op_of(action.id), engine_.sequence_of(action.id), task.tag};
  const std::span<const std::byte> data{memory_.address(action.id, task.partition, task.data), bytes.wire};
  if (framer_.send(action.peer, name, data, encoded, id_of(action.id, action.task))) {
    pending_.push_back({.kind = EventKind::sent, .id = action.id, .task = action.task});
  } else {
    tally_.flows();
  }
}

void Driver::start_jobs() {
  if (jobs_.empty()) return;
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.swap(jobs_);
  const bool small = largest_job_ <= options_.run_inline_bytes && jobs_bytes_ <= options_.batch_bytes;
  jobs_bytes_ = largest_job_ = 0;
  if (small) {
    errors_.clear();
    run_all(jobs, errors_);
    for (std::size_t i = 0; i < jobs.size(); ++i) finished(std::move(jobs[i]), std::move(errors_[i]));
    return;
  }
  std::vector<std::unique_ptr<Job>> batch;
  std::size_t bytes = 0;
  for (auto& job : jobs) {
    bytes += job->weight;
    batch.push_back(std::move(job));
    if (bytes >= options_.batch_bytes) {
      workers_.run(std::move(batch));
      batch.clear();
      bytes = 0;
    }
  }
  if (!batch.empty()) workers_.run(std::move(batch));
}

std::unique_ptr<Job> Driver::new_job() {
  if (spare_jobs_.empty()) return std::make_unique<Job>();
  auto job = std::move(spare_jobs_.back());
  spare_jobs_.pop_back();
  return job;
}

void Driver::on_head(int peer, std::span<const std::byte> head) {
  try {
    framer_.take(peer, head, *this);
  } catch (const CorruptPayload& error) {
    on_corrupt(peer, error.what(), {});
  }
}

void Driver::on_sent(std::uint64_t id) {
  tally_.flowed();
  pending_.push_back({.kind = EventKind::sent, .id = instance_of(id), .task = task_of(id)});
}

void Driver::on_body(std::uint64_t id) { framer_.received(id, *this); }

void Driver::on_peer_down(int peer, std::string_view why) {
  apply({.kind = EventKind::peer_down, .peer = static_cast<std::uint16_t>(peer), .bytes = bytes_of(why)});
}

void Driver::on_control(int peer, std::span<const std::byte> message) {
  apply({.kind = EventKind::control, .peer = static_cast<std::uint16_t>(peer), .bytes = message});
}

void Driver::on_message(int peer, const MessageName& name, std::size_t bytes, std::uint64_t cookie) {
  apply({.kind = EventKind::arrived,
         .peer = static_cast<std::uint16_t>(peer),
         .op = name.op,
         .sequence = name.sequence,
         .tag = name.tag,
         .size = bytes,
         .value = cookie});
}

void Driver::on_placed(std::uint64_t id, std::size_t bytes) {
  const std::uint32_t instance = instance_of(id);
  if (!memory_.active(instance) || engine_.failed()) return;
  const Task& task = engine_.shape(instance).workflow.tasks[task_of(id)];
  if (task.data.place == Place::slot) memory_.set_slot_bytes(instance, task.data.slot, bytes);
  tally_.received(instance, task.peer, bytes_of_message(engine_.shape(instance), memory_, instance, task));
  pending_.push_back({.kind = EventKind::received, .id = instance, .task = task_of(id)});
}

void Driver::on_body_begun(int peer) { meters_[engine_.on_my_host(peer) ? 1 : 0].begin(now_); }

void Driver::on_body_done(int peer, std::size_t bytes) {
  const bool near = engine_.on_my_host(peer);
  if (const auto period = meters_[near ? 1 : 0].end(bytes, now_)) {
    measured({near ? CostKind::intra : CostKind::inter,
              {},
              static_cast<double>(period->bytes),
              static_cast<double>(period->time) * 1e-9});
  }
}

void Driver::on_corrupt(int peer, std::string_view why, std::optional<std::uint64_t> id) {
  // The Engine may be in the middle of an event: it hears of this after it.
  if (corrupt_) return;
  ErrorFacts facts{.kind = ErrorKind::corrupt_payload, .peer = static_cast<std::uint32_t>(peer)};
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
