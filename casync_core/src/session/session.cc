#include "casync/session.hpp"

#include <cmath>

#include "session/session_impl.hpp"

namespace casync {

void Session::Impl::throw_failure(Status status, const std::string& text, ErrorFacts facts) {
  switch (status) {
    case Status::mismatch:
      throw Mismatch(text, std::move(facts));
    case Status::timeout:
      throw Timeout(text, std::move(facts));
    case Status::aborted:
      throw Aborted(text, std::move(facts));
    case Status::peer_failure:
      throw PeerFailure(text, std::move(facts));
    case Status::corrupt:
      throw CorruptPayload(text, std::move(facts));
    case Status::ok:
      break;
  }
  throw InternalError("an operation failed with status ok");
}

Session::Session(std::shared_ptr<Transport> transport, SessionOptions options, Log log)
    : impl_(std::make_unique<Impl>(std::move(transport), std::move(options), std::move(log))) {}

Session::~Session() { shutdown(); }

int Session::rank() const { return impl_->transport->rank(); }
int Session::size() const { return impl_->transport->size(); }

namespace {

std::string key_of(const std::string& name, const Signature& s) {
  return detail::concat(name, '\0', static_cast<int>(s.kind), ',', static_cast<int>(s.dtype), ',',
                        static_cast<int>(s.op), ',', s.shape.rows, ',', s.shape.cols, ',', s.root, ',', s.prescale, ',',
                        s.postscale, ',', s.dims, ',', s.compression, ',', s.topology, ',', name_of(s.memory), ',',
                        s.priority, ',', s.seed);
}

}  // namespace

/// With the mutex.
std::uint32_t Session::Impl::define(const std::string& name, const Signature& signature, const std::string& site) {
  const std::string key = key_of(name, signature);
  if (const auto known = definitions.find(key)) return *known;
  check_signature(name, signature, transport->size());
  MeasuredPlanning::check(planning, name, signature);  // throws what no plan can carry
  const std::uint32_t number = definitions.next();
  if (const auto set = set_states.find(name); set != set_states.end() && reduces(signature.kind)) {
    check_state(name, set->second, signature.shape);
    set_states.erase(set);
  }
  auto definition = std::make_unique<Definition>(Definition{name, signature, hash_text(name, signature.seed)});
  definitions.add({.definition = std::move(definition), .name = names.number_of(name), .key = key});
  executor->define(number, {name, 0, signature, site});
  while (auto gone = definitions.forget()) {
    if (gone->was_last) names.forget(gone->name);
    executor->forget(gone->number, std::move(gone->definition));
  }
  return number;
}

/// With the mutex.
Definitions::One& Session::Impl::defined(std::uint32_t registration) {
  if (Definitions::One* const one = definitions.use(registration)) return *one;
  throw InvalidArgument(detail::concat("registration ", registration, " was forgotten, because ", kDefinitions,
                                       " others were used since: define its tensor again"),
                        {.rank = number_of(transport->rank())});
}

bool Session::use(std::uint32_t registration) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->definitions.use(registration) != nullptr;
}

bool Session::knows(std::uint32_t registration) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->definitions.has(registration);
}

std::uint32_t Session::define(const std::string& name, const Signature& signature, const std::string& site) {
  const std::lock_guard lock(impl_->mutex);
  Signature seeded = signature;
  if (reduces(signature.kind)) seeded.seed = impl_->options.seed;
  return impl_->about(name, signature.kind, [&] { return impl_->define(name, seeded, site); });
}

void Session::set_optimizer(std::uint32_t registration, float lr, float momentum, bool nesterov, float loss_scale) {
  if (!(loss_scale > 0) || !std::isfinite(loss_scale)) {
    throw InvalidArgument(detail::concat("a loss scale is a positive number, and this one is ", loss_scale),
                          {.rank = impl_->number_of(rank())});
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->defined(registration).optimizer = {lr, momentum, nesterov, loss_scale};
}

Session::Handle Session::submit(std::uint32_t registration, const void* input, void* output, std::int64_t rows,
                                bool wake, std::vector<std::int64_t> splits, const DeviceStream& where) {
  return impl_->submit(registration, input, output, rows, wake, std::move(splits), {}, where);
}

void Session::submit(std::uint32_t registration, const void* input, void* output, Completion completion,
                     std::int64_t rows, bool wake, std::vector<std::int64_t> splits, const DeviceStream& where) {
  impl_->submit(registration, input, output, rows, wake, std::move(splits), completion, where);
}

Session::Handle Session::Impl::submit(std::uint32_t registration, const void* input, void* output, std::int64_t rows,
                                      bool wake, std::vector<std::int64_t> splits, Completion completion,
                                      const DeviceStream& where) {
  std::unique_lock lock(mutex);
  Definitions::One& one = defined(registration);
  const Definition& definition = *one.definition;
  if (shut_down) {
    ErrorFacts facts = facts_of(definition);
    facts.kind = ErrorKind::shut_down;
    facts.peer = facts.rank;
    throw Aborted("CaSync has been shut down", std::move(facts));
  }
  about(definition.name, definition.signature.kind, [&] { check_splits(definition, splits, transport->size()); });
  if (has_joined) {
    throw InvalidArgument(
        detail::concat("Requested to ", name_of(definition.signature.kind), " tensor ", definition.name,
                       " on a rank that has joined: submit it before the join, or "
                       "after the join has returned"),
        facts_of(definition));
  }
  const bool wants_device = definition.signature.memory == MemoryKind::device;
  if (wants_device != where.on_device()) {
    throw InvalidArgument(detail::concat("tensor ", definition.name, " was defined in memory ",
                                         wants_device ? "on a device" : "of the host", ", and submitted in the other"),
                          facts_of(definition));
  }
  const bool awaited = !completion || !wake;
  const Nanoseconds now = executor->now();
  const std::uint32_t name = one.name;
  if (names.taken(name, now)) {
    throw InvalidArgument(
        detail::concat("Requested to ", name_of(definition.signature.kind),
                       " a tensor with the same name as another that is outstanding: ", definition.name,
                       ". Wait for the first before you submit it again, or give one another name"),
        facts_of(definition));
  }
  HandleTable::Entry& entry = handles.add();
  Operation& operation = *entry.operation;
  operation.definition = &definition;
  operation.input = input;
  operation.output = output;
  operation.rows = rows;
  operation.splits = std::move(splits);
  entry.registration = registration;
  if (where.on_device()) {
    try {
      about(definition.name, definition.signature.kind, [&] { devices->stage(entry, where); });
    } catch (...) {
      handles.release(entry);
      throw;
    }
  }
  definitions.begin(one);
  operation.optimizer = one.optimizer;
  operation.submitted = now;
  operation.submitter = executor->measures() ? program_time() : ThreadMoment();
  operation.step = names.take(name, operation);
  if (reduces(definition.signature.kind)) steps.submitted(operation.step, now, executor->waited());
  operation.completion = completion;
  operation.awaited = awaited;
  const Handle handle = handles.handle_of(entry);
  if (definition.signature.kind == OpKind::join) has_joined = true;
  // A join must not overtake what was submitted before it, or another would be in the place of that.
  const bool waits = definition.signature.kind == OpKind::join && devices->expects_something();
  if (entry.staged != nullptr || waits) {
    devices->expect(registration, operation);
    return handle;
  }
  executor->submit(registration, &operation);
  lock.unlock();
  if (wake) executor->advance(awaited);
  return handle;
}

bool Session::done(Handle handle) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->entry_of(handle).operation->done.load(std::memory_order_acquire);
}

bool Session::poll(Handle handle) {
  if (done(handle)) {
    const std::lock_guard lock(impl_->mutex);
    const HandleTable::Entry& entry = impl_->entry_of(handle);
    impl_->names.release(impl_->definitions[entry.registration].name, *entry.operation);
    return true;
  }
  impl_->executor->poll();
  return false;
}

bool Session::wait(Handle handle, Nanoseconds timeout) {
  impl_->refuse_in_completion();
  const Operation* operation = nullptr;
  {
    const std::lock_guard lock(impl_->mutex);
    operation = &*impl_->entry_of(handle).operation;
  }
  return impl_->executor->wait(operation->done, timeout);
}

bool Session::wait(const std::atomic<bool>& done, Nanoseconds timeout) {
  impl_->refuse_in_completion();
  return impl_->executor->wait(done, timeout);
}

void Session::add_device_code(int device, const std::string& common, const std::string& spec, const std::string& code) {
  impl_->refuse_in_completion();
  impl_->devices->add_code(device, common, spec, code);
}

void Session::order_after(Handle handle, void* stream) {
  std::unique_lock lock(impl_->mutex);
  const HandleTable::Entry& entry = impl_->entry_of(handle);
  if (entry.staged == nullptr) return;
  try {
    impl_->devices->order_after(*entry.staged, stream);
  } catch (const DeviceFailure& failure) {
    lock.unlock();
    impl_->inspect([&](Driver&, const Engine&) {
      impl_->devices->lose(failure.what());
      const std::lock_guard entries(impl_->mutex);
      impl_->devices->fail(*impl_->entry_of(handle).operation);
    });
  }
}

Gathered Session::take_result(Handle handle) {
  const std::lock_guard lock(impl_->mutex);
  Operation& operation = *impl_->entry_of(handle).operation;
  return {std::move(operation.result), std::move(operation.result_rows)};
}

bool Session::collect(Handle handle) {
  Impl::Ended ended;
  {
    const std::lock_guard lock(impl_->mutex);
    HandleTable::Entry& entry = impl_->entry_of(handle);
    if (!entry.operation->done.load(std::memory_order_acquire)) return false;
    ended = impl_->release(entry);
  }
  impl_->tell(ended);
  return true;
}

void Session::abort(const std::string& why) { impl_->executor->abort(why); }
void Session::close_in_child() { impl_->transport->close_in_child(); }

void Session::shutdown() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->shut_down) return;
    impl_->refuse_in_completion();
    impl_->shut_down = true;
  }
  impl_->devices->await_inputs();
  impl_->executor->shutdown();
  impl_->await_results();
  stop_timeline();
  const std::lock_guard lock(impl_->mutex);
  impl_->handles.close([&](HandleTable::Entry& entry) {
    if (entry.staged != nullptr) impl_->devices->give_back(std::move(entry.staged), true);
  });
}

SessionCounters Session::counters() {
  SessionCounters counters;
  impl_->inspect([&](Driver& driver, const Engine& engine) {
    counters.transport = driver.traffic();
    counters.slot_bytes = driver.memory().slot_memory();
    counters.residual_bytes = driver.memory().store().bytes();
    counters.pool_peak = engine.admission().peak();
  });
  return counters;
}

Metrics Session::metrics() const {
  Metrics metrics;
  metrics.waited = impl_->executor->waited();
  impl_->steps.read(metrics);
  impl_->executor->tally().read(metrics);
  impl_->executor->gradients().read(metrics.gradients);
  return metrics;
}

void Session::start_timeline(const std::string& path, bool mark_cycles) {
  stop_timeline();
  impl_->inspect([&](Driver& driver, const Engine&) {
    impl_->trace = std::make_unique<Timeline>(path, driver.operations(), driver.memory(), rank(), mark_cycles);
    driver.watched_by(*impl_->trace);
  });
}

void Session::stop_timeline() {
  impl_->inspect([&](Driver& driver, const Engine&) {
    if (impl_->trace != nullptr) driver.unwatched_by(*impl_->trace);
    impl_->trace.reset();
  });
}

}  // namespace casync
