#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "bindings/dispatcher.hpp"
#include "casync/log.hpp"

namespace casync {

/// `call()`, which calls Python. What that raises goes to sys.unraisablehook: whoever makes progress has no part in it.
template <typename Call>
void unraised(const char* what, const Call& call) {
  try {
    call();
  } catch (pybind11::error_already_set& error) {
    if (error.matches(PyExc_KeyboardInterrupt)) {
      PyErr_SetInterrupt();  // for the program, which asks for signals
    } else {
      error.discard_as_unraisable(what);
    }
  }
}

/// Calls `log(level, text, fields)` for each record, in their order: at once for who holds the GIL, and else on the
/// dispatcher's thread, or on the next thread of Python's that waits. `mutex_` guards the records that are left.
class PythonLog : public std::enable_shared_from_this<PythonLog> {
 public:
  PythonLog(pybind11::function log, std::shared_ptr<Dispatcher> dispatcher)
      : log_(std::move(log)), dispatcher_(std::move(dispatcher)) {}

  /// Any thread, with the GIL or without.
  void write(const LogRecord& record);
  /// Writes what is left. With the GIL.
  void catch_up();

 private:
  pybind11::function log_;
  std::shared_ptr<Dispatcher> dispatcher_;
  std::atomic<bool> has_left_{false};
  std::mutex mutex_;
  std::vector<LogRecord> left_;
};

}  // namespace casync
