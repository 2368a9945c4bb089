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
      framer_(transport, options.session_tag, options.inline_bytes, options.contents) {}

Driver::~Driver() = default;

void Driver::define(std::uint32_t registration, const Request& definition) {
  Bytes bytes;
  put_definition(bytes, definition);
  apply({.kind = EventKind::define, .id = registration, .bytes = bytes});
}

void Driver::submit(std::uint32_t registration, Operation* operation) {
  apply({.kind = EventKind::submit,
         .id = registration,
         .sequence = memory_.steps(operation->definition->name),
         .tag = memory_.settled(*operation->definition),
         .size = static_cast<std::uint64_t>(operation->rows),
         .value = reinterpret_cast<std::uint64_t>(operation),
         .bytes = std::as_bytes(std::span(operation->splits))});
}

void Driver::abort(const std::string& why) { give_up(Status::aborted, why); }

void Driver::give_up(Status status, const std::string& why) {
  apply({.kind = EventKind::abort, .status = status, .bytes = bytes_of(why)});
}

void Driver::shutdown() { apply({.kind = EventKind::shutdown}); }

void Driver::finished(std::unique_ptr<Job> job, std::string error) {
  if (const auto trial = std::move(job->trial)) {
    for (const Measurement& measurement : trial->results()) measured(measurement);
    if (!error.empty()) abort("a trial run of a codec failed: " + error);
    spare_jobs_.push_back(std::move(job));
    return;
  }
  const std::uint32_t instance = job->instance;
  const Template& shape = engine_.shape(instance);
  const Task& task = shape.workflow.tasks[job->task];
  Status status = error.empty() ? Status::ok : Status::aborted;
  if (memory_.active(instance)) {  // else it was refused meanwhile
    if (!error.empty()) {
      error = detail::concat(name_of(task.primitive), " of tensor ", memory_.operation(instance).definition->name,
                             " failed: ", error);
      const std::int64_t sender = job->refused == Job::kNone ? -1 : shape.sender_of(task, job->refused);
      if (sender >= 0) {
        status = Status::corrupt;
        error = detail::concat("bytes from rank ", sender, ": ", error, noticed());
      }
    } else if (task.settles && task.primitive == Primitive::merge) {
      if (job->settled || !options_.contents) memory_.kept_of(instance)->agree();
    } else if (task.encode_to.place == Place::slot) {
      memory_.set_slot_bytes(instance, task.encode_to.slot, job->segment.payload_bytes);
    }
    if (!job->nonfinite.empty()) note_nonfinite(shape, *job);
  }
  apply({.kind = EventKind::ran,
         .status = status,
         .flag = task.deliver && job->segment.nonfinite,
         .id = instance,
         .task = job->task,
         .bytes = bytes_of(error)});
  spare_jobs_.push_back(std::move(job));
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
  return busy;
}

void Driver::apply(const Event& event) {
  for (Observer* observer : options_.observers) observer->on_event(event, now_);
  try {
    engine_.apply(event, now_, *this);
  } catch (const CorruptPayload& error) {
    // A message that no correct peer sends: the session cannot go on, but it ends with a text on every rank.
    if (engine_.failed()) throw;
    give_up(Status::corrupt, detail::concat(error.what(), noticed()));
  } catch (const std::exception& error) {
    // A fault of our own, or there is no memory.
    if (engine_.failed()) throw;
    give_up(Status::aborted, error.what());
  }
}

/// Carries on until nothing follows any more: small jobs and sends complete within the turn. Returns whether anything
/// did.
bool Driver::settle() {
  bool applied = false;
  while (!pending_.empty() || !jobs_.empty() || !corrupt_.empty()) {
    applied = true;
    if (!corrupt_.empty()) give_up(Status::corrupt, std::exchange(corrupt_, {}));
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
      callbacks_.report(std::string(text_of(action.bytes)));
      break;
  }
}

void Driver::finish(const Action& action) {
  auto& operation = *reinterpret_cast<Operation*>(action.value);
  operation.status = action.status;
  operation.nonfinite = action.nonfinite;
  operation.text = text_of(action.bytes);
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
  std::size_t bytes = shape.message_bytes(task);
  const bool encoded = !shape.raw(task.data);
  if (task.data.place == Place::slot) bytes = memory_.slot_bytes(action.id, task.data.slot);
  const MessageName name{engine_.op_of(action.id), engine_.sequence_of(action.id), task.tag};
  const std::span<const std::byte> data{memory_.address(action.id, task.partition, task.data), bytes};
  if (framer_.send(action.peer, name, data, encoded, id_of(action.id, action.task))) {
    pending_.push_back({.kind = EventKind::sent, .flag = action.value != 0, .id = action.id, .task = action.task});
  }
}

void Driver::start_jobs() {
  if (jobs_.empty()) return;
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.swap(jobs_);
  const bool small = largest_job_ <= options_.run_inline_bytes && jobs_bytes_ <= options_.batch_bytes;
  jobs_bytes_ = largest_job_ = 0;
  if (small) {
    for (auto& job : jobs) {
      std::string error = job->run();
      finished(std::move(job), std::move(error));
    }
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
  pending_.push_back({.kind = EventKind::sent, .flag = true, .id = instance_of(id), .task = task_of(id)});
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
  if (!corrupt_.empty()) return;
  std::string of;
  if (id && memory_.active(instance_of(*id)))
    of = detail::concat(" of tensor ", memory_.operation(instance_of(*id)).definition->name);
  corrupt_ = detail::concat("bytes", of, " from rank ", peer, ": ", why, noticed());
}

/// Which rank it was that says so: the text goes to all.
std::string Driver::noticed() const { return detail::concat(", noticed by rank ", transport_.rank()); }

}  // namespace casync
