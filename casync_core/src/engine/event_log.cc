#include "engine/event_log.hpp"

#include <cstring>

#include "casync/error.hpp"
#include "engine/log_record.hpp"

namespace casync {

/// Passes every question on and writes the answer down.
class EventLog::Watched final : public Planning {
 public:
  Watched(EventLog& log, std::unique_ptr<Planning> planning) : log_(log), planning_(std::move(planning)) {}

  std::vector<std::string> define(const std::string& name, const Signature& signature) override {
    return written(log::Question::define, planning_->define(name, signature));
  }
  /// Asked from outside the Engine, too, and often: what counts is what it says when the Engine asks, at a submit, and
  /// that is in the log with the costs.
  bool measuring() const override { return planning_->measuring(); }
  void measured(const Measurement& measurement) override { planning_->measured(measurement); }
  std::optional<std::vector<std::byte>> costs(const Signature& signature, std::uint32_t sequence) override {
    return written(log::Question::costs, planning_->costs(signature, sequence));
  }
  GradientPlan plan(const std::string& name, const Signature& signature, std::uint32_t sequence) override {
    return *written(log::Question::plan, std::optional(planning_->plan(name, signature, sequence)));
  }
  void costs_of(std::uint32_t member, std::span<const std::byte> costs) override { planning_->costs_of(member, costs); }
  std::optional<GradientPlan> re_plan(const std::string& name, const Signature& signature, const GradientPlan& current,
                                      std::uint32_t sequence) override {
    return written(log::Question::re_plan, planning_->re_plan(name, signature, current, sequence));
  }

 private:
  template <typename Answer>
  Answer written(log::Question question, Answer answer) {
    log_.record_.push_back(static_cast<std::byte>(log::Record::answer));
    log::put_answer(log_.record_, question, answer);
    log_.write();
    return answer;
  }

  EventLog& log_;
  std::unique_ptr<Planning> planning_;
};

EventLog::EventLog(const std::string& path, const EngineOptions& options, const std::string& coordinator)
    : file_(path, std::ios::binary | std::ios::trunc) {
  if (!file_)
    throw InvalidArgument(
        detail::concat("the event log ", path, " cannot be written; set CASYNC_EVENT_LOG to another place"));
  record_.reserve(512);
  ByteWriter writer(record_);
  writer.put(log::kMagic);
  writer.put(log::kVersion);
  writer.put_text(coordinator);
  log::put(record_, options);
  write();
}

EventLog::~EventLog() = default;

std::unique_ptr<Planning> EventLog::watch(std::unique_ptr<Planning> planning) {
  return std::make_unique<Watched>(*this, std::move(planning));
}

/// A record is its length and its bytes.
void EventLog::write() {
  const auto length = static_cast<std::uint32_t>(record_.size());
  file_.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file_.write(reinterpret_cast<const char*>(record_.data()), static_cast<std::streamsize>(record_.size()));
  record_.clear();
}

std::uint64_t EventLog::number_of(std::uint64_t handle) const {
  const auto at = handles_.find(handle);
  return at == handles_.end() ? 0 : at->second;
}

void EventLog::on_event(const Event& event, Nanoseconds now) {
  std::uint64_t number = event.value;
  if (event.kind == EventKind::submit) number = handles_[event.value] = next_handle_++;
  record_.push_back(static_cast<std::byte>(log::Record::event));
  log::put(record_, event, number, now);
  write();
  // What follows a failure is what a log is read for.
  const bool ends = event.kind == EventKind::peer_down || event.kind == EventKind::shutdown;
  if (ends || event.status != Status::ok) file_.flush();
}

void EventLog::on_decide(Nanoseconds now) {
  record_.push_back(static_cast<std::byte>(log::Record::decide));
  ByteWriter(record_).put(now);
  write();
}

void EventLog::on_action(const Action& action) {
  const bool handle = action.kind == ActionKind::begin || action.kind == ActionKind::finish;
  record_.push_back(static_cast<std::byte>(log::Record::action));
  ByteWriter(record_).put(log::trace_of(action, handle ? number_of(action.value) : action.value));
  write();
}

}  // namespace casync
