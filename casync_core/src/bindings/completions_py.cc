#include "bindings/completions_py.hpp"

#include <pybind11/stl.h>

#include <utility>

#include "bindings/bindings.hpp"
#include "bindings/errors_py.hpp"

namespace py = pybind11;

namespace casync {

py::object to_python(const Gathered& gathered) {
  return py::make_tuple(py::bytearray(reinterpret_cast<const char*>(gathered.bytes.data()), gathered.bytes.size()),
                        gathered.rows);
}

void CompletionCall::run() {
  unraised("casync's completion", [&] {
    const bool has_failed = outcome_.failure != nullptr;
    const py::object error = has_failed ? error_object(outcome_.failure) : py::none();
    function_(error, outcome_.result.rows.empty() ? py::none() : to_python(outcome_.result));
  });
}

CompletionGroup::CompletionGroup(BoundSession& session, py::object function)
    : session_(session), state_(new State), progress_(state_->progress) {
  state_->function = std::move(function);
  state_->dispatcher = &session.dispatcher();
}

namespace {

/// Whether the session is over with it, so that transfers may still touch what was outstanding.
bool ends_the_session(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure&) {
    return true;
  } catch (const Aborted&) {
    return true;
  } catch (const CorruptPayload&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void CompletionGroup::State::ended(const std::exception_ptr& failure) {
  if (failure != nullptr) {
    const std::lock_guard lock(mutex);
    if (first == nullptr || (ends_the_session(failure) && !ends_the_session(first))) first = failure;
  }
  if (left.fetch_sub(1) != 1) return;
  const std::shared_ptr<Progress> kept = progress;  // this object may be gone as soon as `done` is set
  const bool is_mine = kept->caller.exchange(Caller::settled) == Caller::dispatcher;
  if (is_mine) dispatcher->hand_over(std::unique_ptr<State>(this));
  kept->done.store(true, std::memory_order_release);
}

void CompletionGroup::State::run() {
  unraised("casync's completion", [&] { function(first == nullptr ? py::none() : error_object(first)); });
}

void CompletionGroup::close() {
  if (std::exchange(is_closed_, true) || state_->left.fetch_sub(1) != 1) return;
  const std::unique_ptr<State> last(state_);
  progress_->caller = Caller::settled;
  progress_->done.store(true, std::memory_order_release);
  last->run();
}

/// Who waited does no longer: what ended just now is called here after all.
void CompletionGroup::leave_to_dispatcher() {
  Caller caller = Caller::waiter;
  if (progress_->caller.compare_exchange_strong(caller, Caller::dispatcher)) return;
  const py::error_scope raised;  // which the call must not see
  const std::unique_ptr<State> mine(state_);
  mine->run();
}

void CompletionGroup::wait() {
  Caller caller = Caller::dispatcher;
  const bool calls = progress_->caller.compare_exchange_strong(caller, Caller::waiter);
  while (!progress_->done.load(std::memory_order_acquire)) {
    try {
      const py::gil_scoped_release release;
      session_.wait(progress_->done, kSignalInterval);
    } catch (...) {
      if (calls) leave_to_dispatcher();
      throw;
    }
    if (PyErr_CheckSignals() == 0) continue;
    if (calls) leave_to_dispatcher();
    throw py::error_already_set();
  }
  if (!calls) return;
  const std::unique_ptr<State> mine(state_);
  mine->run();
}

void bind_together(py::module_& module) {
  using namespace py::literals;
  py::class_<CompletionGroup>(module, "CompletionGroup", py::is_final())
      .def(py::init<BoundSession&, py::object>(), "session"_a, "completion"_a, py::keep_alive<1, 2>())
      .def("close", &CompletionGroup::close)
      .def("wait", &CompletionGroup::wait);
}

}  // namespace casync
