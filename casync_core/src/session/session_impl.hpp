#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "casync/error.hpp"
#include "casync/session.hpp"
#include "collectives/collectives.hpp"
#include "common/hash.hpp"
#include "coordinator/make_policy.hpp"
#include "executor/frames/frame.hpp"
#include "executor/measure/timeline.hpp"
#include "executor/memory/tensor_sizes.hpp"
#include "executor/real/completing.hpp"
#include "executor/real/device_trial.hpp"
#include "executor/real/real_executor.hpp"
#include "planner/tune/measured_planning.hpp"
#include "record/event_log.hpp"
#include "session/checks.hpp"
#include "session/definitions.hpp"
#include "session/handle_table.hpp"
#include "session/make_lane.hpp"
#include "session/names.hpp"
#include "session/nonfinite_log.hpp"
#include "session/processors.hpp"
#include "session/staging.hpp"
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
  static constexpr Nanoseconds kCopyTime = 1'000'000'000;  // for copies of a device that are under way at a shutdown

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
    lane_kind = lane_of(options.device_lane, options.host_of);
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
                                .look = [this] { return look(); }});
  }

  std::uint32_t define(const std::string& name, const Signature& signature, const std::string& site);
  Definitions::One& defined(std::uint32_t registration);

  void stand_in(const Request& wanted) {
    const std::lock_guard lock(mutex);
    const std::uint32_t registration = define(wanted.name, wanted.signature, wanted.site);
    Definitions::One& defined = definitions[registration];
    Definitions::begin(defined);
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
    if (operation.staged != nullptr) look_at_plan(operation);
    if (operation.staged == nullptr || staging->copy_out(operation)) hand_over(operation);
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
      staging->give_back(std::move(entry.staged), session_is_over);
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

  // --- operations on a device ---

  /// With the mutex. The one way to this device, which the first operation on it makes.
  Staging& staging_for(int device) {
    if (staging == nullptr) {
      const Staging::Callbacks callbacks{
          .arrived = [this](std::uint32_t registration,
                            Operation& operation) { executor->submit(registration, &operation); },
          .left = [this](Operation& operation) { hand_over(operation); },
          .failed = [this](const std::string& why) { executor->abort(why); },
          .ring = [this] { executor->wake(); }};
      staging = std::make_unique<Staging>(device, transport->rank(), callbacks);
      device_in_use.store(staging.get(), std::memory_order_release);
    }
    if (staging->device() == device) return *staging;
    throw InvalidArgument(detail::concat(
        "it is on device ", device, ", and what this process submitted before on device ", staging->device(),
        ": a process drives one device. Choose it before tensors are made: torch.cuda.set_device(hvd.local_rank())"));
  }

  /// From now on the device has the code of codec `spec`, and what no codec has. One thread at a time.
  void add_device_code(int device, const std::string& common, const std::string& spec, const std::string& code) {
    std::unique_lock lock(mutex);
    staging_for(device);
    CudaStream* there = stream;
    bool is_weighed = false;
    definitions.for_each([&](std::uint32_t /*number*/, const Definitions::One& one) {
      is_weighed =
          is_weighed || MeasuredPlanning::weighs(planning, one.definition->name, one.definition->signature, spec);
    });
    lock.unlock();  // the executor's role comes before the mutex
    if (is_weighed) {
      const DeviceTrial trial(device, common, spec, code);
      executor->inspect([&](Driver&, const Engine&) {
        for (const Measurement& cost : trial.results()) planner->measured(cost);
      });
    }
    if (there == nullptr) {
      auto made = std::make_unique<CudaStream>(device, common, [this] { executor->wake(); });
      there = made.get();
      executor->add_stream(std::move(made), make_lane(lane_kind, device, {transport->rank(), transport->size()},
                                                      options.nccl_library, [this] { executor->wake(); }));
    }
    there->add(spec, code);
    lock.lock();
    stream = there;
    definitions.for_each([](std::uint32_t /*number*/, Definitions::One& one) {
      one.by_plan = {};  // more is computed there now
    });
  }

  /// With the progress role, when an operation on a device is over: whether its next run is computed there. The plan is
  /// known by now; a run for which it changes afterwards is fetched.
  void look_at_plan(const Operation& operation) {
    const std::lock_guard lock(mutex);
    const std::uint32_t registration = handles[operation.index].registration;
    std::shared_ptr<const TaskGraph> graph = stream == nullptr ? nullptr : executor->graph_of(registration);
    Definitions::ByPlan& known = definitions[registration].by_plan;
    const bool has_lane = executor->has_lane();
    if (graph == nullptr || (graph == known.graph && has_lane == known.had_lane)) return;
    const Signature& signature = operation.definition->signature;
    known.had_lane = has_lane;
    known.by_lane = has_lane && executor->is_for_lane(*graph) && stream->supports(*graph, signature, true);
    known.on_stream = known.by_lane || stream->supports(*graph, signature, false);
    known.graph = std::move(graph);
  }

  /// With the mutex. Has the operation of `entry` work on the device, if its codec does, or else on memory of the host,
  /// to which its input is copied.
  void stage(HandleTable::Entry& entry, const DeviceStream& where) {
    Operation& operation = *entry.operation;
    const Signature& signature = operation.definition->signature;
    if (const Definitions::ByPlan& known = definitions[entry.registration].by_plan; known.on_stream) {
      entry.staged = staging_for(where.device).await(operation, where.stream);
      operation.by_lane = known.by_lane;
      return;
    }
    std::size_t result = operation.output == nullptr ? 0 : raw_bytes_of(operation);
    if (signature.kind == OpKind::reducescatter) {
      const Range mine = scattered_to(transport->rank(), transport->size(), signature.shape);
      result = static_cast<std::size_t>(mine.size()) * size_of(signature.dtype);
    }
    entry.staged = staging_for(where.device).copy_in(operation, where.stream, result);
  }

  /// With the progress role.
  std::optional<Nanoseconds> look() {
    Staging* const device = device_in_use.load(std::memory_order_acquire);
    if (device == nullptr) return std::nullopt;
    tell_of_lane();
    return device->look();
  }

  /// With the progress role: that devices cannot send to each other, once.
  void tell_of_lane() {
    if (has_told_of_lane || executor->lane_refusal().empty()) return;
    has_told_of_lane = true;
    log({.level = LogLevel::info, .text = detail::concat("devices send through the host: ", executor->lane_refusal())});
  }

  /// At a shutdown: inputs that are under way come to the host, where they are ended, or the device is given up.
  void await_inputs() {
    const Nanoseconds deadline = executor->now() + kCopyTime;
    while (staging->expects_something()) {
      if (executor->now() > deadline) {
        return executor->inspect(
            [this](Driver&, const Engine&) { staging->abandon("a copy to the host does not end"); });
      }
      executor->poll();
      std::this_thread::yield();
    }
  }

  /// At the end of a shutdown, when nobody makes progress: the same for results on their way to the device.
  void await_results() {
    ends_late.emplace();
    const Nanoseconds deadline = executor->now() + kCopyTime;
    while (staging->look()) {
      if (executor->now() > deadline) staging->abandon("a copy to the device does not end");
      std::this_thread::yield();
    }
    staging->quiesce();
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
  std::unique_ptr<Staging> staging;              // null before the first operation on a device
  std::atomic<Staging*> device_in_use{nullptr};  // the same, for who makes progress
  std::mutex adding;                             // of device code
  CudaStream* stream = nullptr;                  // the executor's; null: no device code was given
  LaneKind lane_kind = LaneKind::host;
  bool has_told_of_lane = false;                     // with the progress role
  std::optional<std::vector<Operation*>> ends_late;  // whose completion is left when the executor is shut down
  std::unique_ptr<EventLog> event_log;               // these two outlive the executor
  std::unique_ptr<Timeline> trace;
  std::unique_ptr<RealExecutor> executor;
};

}  // namespace casync
