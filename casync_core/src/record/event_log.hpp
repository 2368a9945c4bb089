#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "casync/coordinator.hpp"
#include "engine/engine.hpp"

namespace casync {

/// Writes down what one Engine saw and did, so that `replay` can feed it to another one, on another machine, and
/// compare.
///
/// The file: a header with version, coordinator and EngineOptions; then records in the order in which they came: an
/// event with its time, a decide with its time, an action in words. A record cut short at the end, by a
/// process that was killed, is left out when the log is read. Used by the thread that drives the Engine.
class EventLog final : public Observer {
 public:
  /// Opens `path`; throws InvalidArgument if it cannot be written. `options` and `coordinator` are what the Engine is
  /// made of.
  EventLog(const std::string& path, const EngineOptions& options, const CoordinatorOptions& coordinator);
  ~EventLog() override;

  void on_event(const Event& event, Nanoseconds now) override;
  void on_action(const Action& action) override;
  void on_decide(Nanoseconds now) override;

 private:
  void write();

  std::ofstream file_;
  std::vector<std::byte> record_;  // scratch
};

/// What became of a replay.
struct Replay {
  std::uint64_t events = 0;
  std::uint64_t actions = 0;
  std::string difference;  ///< the first one, in words; empty: the Engine did the same again
};

/// Feeds the log to a fresh Engine. Throws CorruptPayload if `path` is not a log of this version, InvalidArgument if it
/// cannot be read.
Replay replay(const std::string& path);

}  // namespace casync
