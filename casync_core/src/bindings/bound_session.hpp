#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "bindings/dispatcher.hpp"
#include "bindings/python_log.hpp"
#include "casync/session.hpp"
#include "executor/real/completing.hpp"

namespace casync {

constexpr Nanoseconds kSignalInterval = 100'000'000;  // how often a thread that waits looks for Ctrl-C

/// A session as Python has it: beside it the thread that calls Python for it, and its log.
class BoundSession final : public Session {
 public:
  BoundSession(std::shared_ptr<Transport> transport, SessionOptions options, std::shared_ptr<Dispatcher> dispatcher,
               std::shared_ptr<PythonLog> log)
      : Session(std::move(transport), std::move(options), [log](const LogRecord& record) { log->write(record); }),
        dispatcher_(std::move(dispatcher)),
        log_(std::move(log)) {}
  /// With the GIL. A completion of another session may be what has Python collect its garbage.
  ~BoundSession() {
    const pybind11::gil_scoped_release release;
    const Completing::Lifted lifted;
    close();
  }

  /// Shuts down, and returns when Python was told of it all. Without the GIL.
  void close() {
    shutdown();
    dispatcher_->stop();
  }
  Dispatcher& dispatcher() { return *dispatcher_; }
  PythonLog& log() { return *log_; }

 private:
  std::shared_ptr<Dispatcher> dispatcher_;
  std::shared_ptr<PythonLog> log_;
};

}  // namespace casync
