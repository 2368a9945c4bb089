#include "record/event_log.hpp"

#include <cstring>

#include "casync/error.hpp"
#include "record/log_record.hpp"

namespace casync {

EventLog::EventLog(const std::string& path, const EngineOptions& options, const CoordinatorOptions& coordinator)
    : file_(path, std::ios::binary | std::ios::trunc) {
  if (!file_)
    throw InvalidArgument(
        detail::concat("the event log ", path, " cannot be written; set CASYNC_EVENT_LOG to another place"));
  record_.reserve(512);
  ByteWriter writer(record_);
  writer.put(log::kMagic);
  writer.put(log::kVersion);
  writer.put_text(coordinator.policy);
  writer.put(coordinator.batch_bytes);
  writer.put(coordinator.timeout);
  log::put(record_, options);
  write();
}

EventLog::~EventLog() = default;

/// A record is its length and its bytes.
void EventLog::write() {
  const auto length = static_cast<std::uint32_t>(record_.size());
  file_.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file_.write(reinterpret_cast<const char*>(record_.data()), static_cast<std::streamsize>(record_.size()));
  record_.clear();
}

void EventLog::on_event(const Event& event, Nanoseconds now) {
  record_.push_back(static_cast<std::byte>(log::Record::event));
  log::put(record_, event, now);
  write();
  // What follows a failure is what a log is read for.
  const auto* const ran = std::get_if<event::Ran>(&event);
  const bool fails = (ran != nullptr && ran->failure != nullptr) || std::holds_alternative<event::GiveUp>(event);
  const bool ends = std::holds_alternative<event::PeerDown>(event) || std::holds_alternative<event::Shutdown>(event);
  if (fails || ends) file_.flush();
}

void EventLog::on_decide(Nanoseconds now) {
  record_.push_back(static_cast<std::byte>(log::Record::decide));
  ByteWriter(record_).put(now);
  write();
}

void EventLog::on_action(const Action& action) {
  record_.push_back(static_cast<std::byte>(log::Record::action));
  ByteWriter(record_).put_text(describe(action));
  write();
}

}  // namespace casync
