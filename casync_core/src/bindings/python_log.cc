#include "bindings/python_log.hpp"

#include <pybind11/stl.h>

#include <utility>

namespace casync {
namespace {

class CatchUp final : public Dispatcher::Call {
 public:
  explicit CatchUp(std::shared_ptr<PythonLog> log) : log_(std::move(log)) {}
  void run() override { log_->catch_up(); }

 private:
  std::shared_ptr<PythonLog> log_;
};

}  // namespace

void PythonLog::write(const LogRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    left_.push_back(record);
    has_left_ = true;
  }
  if (PyGILState_Check() == 0) {
    dispatcher_->hand_over(std::make_unique<CatchUp>(shared_from_this()));
  } else {
    catch_up();
  }
}

void PythonLog::catch_up() {
  if (!has_left_) return;
  std::vector<LogRecord> records;
  {
    const std::lock_guard lock(mutex_);
    records.swap(left_);
    has_left_ = false;
  }
  for (const LogRecord& record : records) {
    unraised("casync's log callback", [&] { log_(static_cast<int>(record.level), record.text, record.fields); });
  }
}

}  // namespace casync
