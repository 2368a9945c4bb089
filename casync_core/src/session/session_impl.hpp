#pragma once

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "casync/error.hpp"
#include "casync/session.hpp"
#include "common/hash.hpp"
#include "coordinator/make_policy.hpp"
#include "executor/frames/frame.hpp"
#include "executor/measure/timeline.hpp"
#include "executor/real/completing.hpp"
#include "executor/real/real_executor.hpp"
#include "planner/tune/measured_planning.hpp"
#include "record/event_log.hpp"
#include "session/checks.hpp"
#include "session/definitions.hpp"
#include "session/device_operations.hpp"
#include "session/handle_table.hpp"
#include "session/names.hpp"
#include "session/nonfinite_log.hpp"
#include "session/processors.hpp"
#include "session/stand_ins.hpp"
#include "session/steps.hpp"
#include "transport/local/local_transport.hpp"

namespace casync {

/// `mutex_` guards the registrations, the operations and the outstanding names; nothing is locked inside it but the
/// executor's inbox. What stands in for the program belongs to the holder of the progress role, who takes the mutex
/// inside it.
struct Session::Impl {
  /// More than operations are kept (EngineOptions::kept): a program may define what it submits later.
  static constexpr std::size_t kDefinitions = 2 * LeastUsed::Limits{}.first;

  static constexpr Nanoseconds from_seconds(double seconds) {
    return static_cast<Nanoseconds>(std::min(seconds * 1e9, static_cast<double>(kLongestTime)));
  }
  /// The exception that belongs to `status`.
  [[noreturn]] static void throw_failure(Status status, const std::string& text, ErrorFacts facts);

  Impl(std::shared_ptr<Transport> given, SessionOptions wanted, Log to)
      : options(std::move(wanted)),
        transport(std::move(given)),
        log(std::move(to)),
        definitions({kDefinitions, LeastUsed::Limits{}.most}),
        handles(options.number) {
    if (transport == nullptr) transport = transport::connect_solo();
    if (options.host_of.empty()) options.host_of.assign(transport->size(), 0);
    devices.emplace(
        DeviceOperations::Context{options, *transport, log, mutex, definitions, handles},
        lane_of(options.device_lane, options.host_of),
        DeviceOperations::Callbacks{.finished = [this](Operation& operation) { hand_over(operation); },
                                    .weighs = [this](const std::string& spec) { return weighs(spec); },
                                    .measured = [this](const Measurement& cost) { planner->measured(cost); }});
    while (options.world.size() < options.host_of.size()) {
      options.world.push_back(static_cast<std::uint32_t>(options.world.size()));
    }
    EngineOptions engine;
    engine.member = transport->rank();
    engine.host_of = options.host_of;
    engine.inline_bytes = std::min(engine.inline_bytes, FrameWriter::room(transport->head_bytes()));
    engine.pool_bytes = options.pool_bytes;
    engine.heartbeat.timeout = from_seconds(options.peer_timeout_s);
    engine.tensor_table.stall_warning = from_seconds(options.stall_warning_s);
    engine.tensor_table.timeout = from_seconds(options.timeout_s);
    planning.host_of = options.host_of;
    planning.planner.min_numel = options.min_numel;
    planning.planner.partition_bytes = static_cast<double>(options.partition_bytes);
    planning.fixed.insert(options.fixed_plans.begin(), options.fixed_plans.end());
    planning.re_plan = options.re_plan;
    planning.deterministic = options.deterministic;
    planning.processors = processors_here(options.host_of[transport->rank()]);
    planning.explain = options.log_level <= LogLevel::info;
    RealExecutor::Options real;
    real.worker_threads = options.worker_threads;
    real.around_turn = options.around_turn;
    real.driver.session_tag = options.session_tag;
    auto policy = make_policy(options.coordinator, transport->rank(), transport->size());
    auto measured = std::make_unique<MeasuredPlanning>(planning, log);
    planner = measured.get();
    if (!options.event_log.empty()) {
      event_log = std::make_unique<EventLog>(options.event_log, engine, options.coordinator);
      real.driver.observers.push_back(event_log.get());
    }
    executor = std::make_unique<RealExecutor>(
        std::make_unique<Engine>(std::move(engine), std::move(policy)), transport, std::move(measured), real,
        RealExecutor::Callbacks{.finished = [this](Operation& operation) { finished(operation); },
                                .stand_in = [this](const Request& absent) { stand_in(absent); },
                                .completed = [this](Operation& operation) { completed(operation); },
                                .report = [this](const Stall& stall) { report(stall); },
                                .look = [this] { return devices->look(); }});
    devices->use(*executor);
  }

  std::uint32_t define(const std::string& name, const Signature& signature, const std::string& site);
  Definitions::One& defined(std::uint32_t registration);

  void stand_in(const Request& wanted) {
    const std::lock_guard lock(mutex);
    const std::uint32_t registration = define(wanted.name, wanted.signature, wanted.site);
    Definitions::One& defined = definitions[registration];
    definitions.begin(defined);
    Operation& operation = stand_ins.add(*defined.definition);
    operation.optimizer = defined.optimizer;
    operation.step = names.count(defined.name);
    operation.index = registration;
    executor->submit(registration, &operation);
  }

  void finished(Operation& operation) {
    if (operation.stands_in) {
      if (operation.status == Status::ok) {  // else the network may still touch its memory
        const std::lock_guard lock(mutex);
        --definitions[operation.index].operations;
      }
      stand_ins.ended(operation);
    } else if (operation.definition->signature.kind == OpKind::join) {
      stand_ins.joined(operation);
    } else {
      over(operation);
    }
    if (Operation* const join = stand_ins.take_join()) over(*join);
  }

  void over(Operation& operation) {
    if (operation.staged == nullptr || devices->ended(operation)) hand_over(operation);
  }

  void hand_over(Operation& operation) {
    if (operation.completion && ends_late) {
      ends_late->push_back(&operation);
    } else if (operation.completion) {
      executor->call_later(operation);
    } else {
      operation.done.store(true, std::memory_order_release);
      executor->has_ended();
    }
  }

  /// What a thread that collects an operation, or a completion, is told of it.
  struct Ended {
    Status status = Status::ok;
    std::string text;
    std::unique_ptr<ErrorFacts> facts;
    std::optional<LogRecord> nonfinite;
  };

  /// Forgets an operation that is over: its entry and its name are free. With the mutex.
  Ended release(HandleTable::Entry& entry) {
    Operation& operation = *entry.operation;
    Definitions::One& defined = definitions[entry.registration];
    names.release(defined.name, operation);
    --defined.operations;
    if (operation.definition->signature.kind == OpKind::join) has_joined = false;
    Ended ended{operation.status, std::move(operation.text), std::move(operation.facts), nonfinite_record(operation)};
    if (entry.staged != nullptr) {
      const bool session_is_over =
          ended.status == Status::peer_failure || ended.status == Status::aborted || ended.status == Status::corrupt;
      devices->give_back(std::move(entry.staged), session_is_over);
    }
    handles.release(entry);
    return ended;
  }

  /// Without the mutex. Throws what went wrong.
  void tell(Ended& ended) const {
    if (ended.nonfinite) log(*ended.nonfinite);
    if (ended.status == Status::ok) return;
    ended.facts->rank = number_of(transport->rank());
    if (ended.facts->peer) ended.facts->peer = options.world[*ended.facts->peer];
    throw_failure(ended.status, ended.text, std::move(*ended.facts));
  }

  /// By the thread that drove the turn, with no lock: the completion may submit the same tensor again.
  void completed(Operation& operation) {
    Completion completion = operation.completion;
    Outcome outcome;
    outcome.result = {std::move(operation.result), std::move(operation.result_rows)};
    Ended ended;
    {
      const std::lock_guard lock(mutex);
      ended = release(handles[operation.index]);
    }
    try {
      tell(ended);
    } catch (...) {
      outcome.failure = std::current_exception();
    }
    completion(std::move(outcome));
  }

  Handle submit(std::uint32_t registration, const void* input, void* output, std::int64_t rows, bool wake,
                std::vector<std::int64_t> splits, Completion completion, const DeviceStream& where);

  void inspect(const std::function<void(Driver&, const Engine&)>& read) const {
    refuse_in_completion();
    executor->inspect(read);
  }

  /// `call(driver)` with the progress role and, inside it, the mutex: a submit comes before all of it, or after.
  void change(const std::function<void(Driver&)>& call) {
    std::exception_ptr refused;
    inspect([&](Driver& driver, const Engine&) {
      const std::lock_guard lock(mutex);
      try {
        call(driver);
      } catch (...) {
        refused = std::current_exception();
      }
    });
    if (refused) std::rethrow_exception(refused);
  }

  void refuse_in_completion() const {
    if (Completing::here() == nullptr) return;
    throw InvalidArgument(
        "a completion cannot wait, or ask for what waits until no thread makes progress: the thread that calls it "
        "makes progress for all. Submit from it, or leave the rest to another thread",
        {.rank = number_of(transport->rank())});
  }

  void report(const Stall& stall) const {
    if (options.log_level > LogLevel::warning) return;
    log({LogLevel::warning,
         stall.text,
         {{"event", "stall"},
          {"tensor", stall.name},
          {"op", std::string(name_of(stall.kind))},
          {"ranks", numbers_of(stall.missing)}}});
  }

  /// With the mutex. Nothing if the operation's result is finite, or if enough was said.
  std::optional<LogRecord> nonfinite_record(const Operation& operation) {
    auto text = nonfinite_log.text_of(operation);
    if (!text || options.log_level > LogLevel::warning) return std::nullopt;
    return LogRecord{LogLevel::warning,
                     std::move(*text),
                     {{"event", "nonfinite"},
                      {"tensor", operation.definition->name},
                      {"op", std::string(name_of(operation.definition->signature.kind))},
                      {"step", static_cast<std::int64_t>(operation.step)},
                      {"ranks", numbers_of(operation.nonfinite_ranks)}}};
  }

  /// Of this rank, in an error that a call of its program raises.
  ErrorFacts facts_of(const std::string& name) const { return {.tensor = name, .rank = number_of(transport->rank())}; }
  ErrorFacts facts_of(const Definition& definition) const {
    ErrorFacts facts = facts_of(definition.name);
    facts.op = definition.signature.kind;
    return facts;
  }
  std::vector<std::int64_t> numbers_of(const std::vector<std::uint32_t>& ranks) const {
    std::vector<std::int64_t> numbers;
    for (const std::uint32_t rank : ranks) numbers.push_back(options.world[rank]);
    std::ranges::sort(numbers);
    return numbers;
  }
  std::uint32_t number_of(int rank) const { return options.world[static_cast<std::size_t>(rank)]; }

  /// `call()`, whose errors are about `name` of this rank if they do not say more.
  template <typename Call>
  auto about(const std::string& name, std::optional<OpKind> op, const Call& call) const {
    try {
      return call();
    } catch (Error& error) {
      error.facts.rank = number_of(transport->rank());
      if (error.facts.tensor.empty()) error.facts.tensor = name;
      if (!error.facts.op) error.facts.op = op;
      throw;
    }
  }

  /// With the mutex. Whether plans weigh codec `spec` for something that is defined.
  bool weighs(const std::string& spec) {
    bool found = false;
    definitions.for_each([&](std::uint32_t /*number*/, const Definitions::One& one) {
      found = found || MeasuredPlanning::weighs(planning, one.definition->name, one.definition->signature, spec);
    });
    return found;
  }

  /// At the end of a shutdown, when nobody makes progress.
  void await_results() {
    ends_late.emplace();
    devices->await_results();
    const Completing here(executor.get());
    for (Operation* const operation : *ends_late) completed(*operation);
  }

  /// What is kept of a gradient is its operation's, as long as there is one. With the mutex.
  void check_kept_is_free(const std::string& name) const {
    if (!names.outstanding(name)) return;
    throw InvalidArgument(detail::concat("tensor ", name,
                                         " is outstanding: what is kept of it cannot be changed before that "
                                         "operation is done"),
                          facts_of(name));
  }

  HandleTable::Entry& entry_of(Handle handle) {
    if (HandleTable::Entry* const entry = handles.find(handle)) return *entry;
    throw InvalidArgument(
        "this handle is not outstanding: it was synchronised before, or given out by another session, say one that was "
        "shut down",
        {.rank = number_of(transport->rank())});
  }

  SessionOptions options;
  std::shared_ptr<Transport> transport;
  Log log;
  MeasuredPlanning::Options planning;
  MeasuredPlanning* planner = nullptr;  // the executor's
  std::mutex mutex;
  Definitions definitions;
  Names names;
  std::unordered_map<std::string, CodecState> set_states;  // without values: what definitions to come must fit
  HandleTable handles;
  NonfiniteLog nonfinite_log;
  Steps steps;
  bool shut_down = false;
  bool has_joined = false;  // and the join was not collected
  StandIns stand_ins;
  std::optional<DeviceOperations> devices;           // made by the constructor
  std::optional<std::vector<Operation*>> ends_late;  // whose completion is left when the executor is shut down
  std::unique_ptr<EventLog> event_log;               // these two outlive the executor
  std::unique_ptr<Timeline> trace;
  std::unique_ptr<RealExecutor> executor;
};

}  // namespace casync
