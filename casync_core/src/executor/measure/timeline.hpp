#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "executor/memory/tensor_sizes.hpp"
#include "executor/operations.hpp"

namespace casync {

/// What one rank does and when, as a Chrome trace: a JSON array of events, which Perfetto and chrome://tracing open.
///
/// The process is the rank. Each tensor is a thread with the phases that Horovod's timeline has, NEGOTIATE_<OP> from
/// its submit until every rank agrees to begin, then <OP> with raw and wire bytes; below them are lanes of what is at
/// work at once: compute (encode, decode, merge, from when the task is ready), send and receive, these two with the
/// codec and the raw and wire bytes of each message. An allreduce has the time beside it that its plan predicted. The
/// file is valid JSON whenever it is read. Used by the thread that drives the Engine.
class Timeline final : public Observer {
 public:
  using Clock = std::function<Nanoseconds()>;

  /// Opens `path`; throws InvalidArgument if it cannot be written. `mark_cycles`: a CYCLE_START for every turn. `clock`
  /// says what time it is.
  Timeline(const std::string& path, const Operations& operations, const Memory& memory, int rank, bool mark_cycles,
           Clock clock = steady_now);
  ~Timeline() override;

  void on_event(const Event& event, Nanoseconds now) override;
  void on_action(const Action& action) override;
  void on_decide(Nanoseconds now) override;

 private:
  enum Lane : std::uint8_t { compute, send, receive };

  struct Run {
    const Operation* operation = nullptr;
    std::shared_ptr<const TaskGraph> graph;
    std::string topology = "direct";
    double predicted_s = 0;
    Nanoseconds begun = 0;
    std::uint64_t sent_bytes = 0;
  };
  struct Work {
    Lane lane = compute;
    std::size_t index = 0;  ///< of the lane, among those of its kind
    Nanoseconds begun = 0;
    std::string name;
    std::string arguments;
  };
  using TaskName = std::pair<std::uint32_t, std::uint32_t>;  // instance, task

  void on(const action::Begin& action);
  void on(const action::Finish& action);
  void start(TaskName task, Lane lane);
  void end(TaskName task);
  std::string message_of(const Run& run, TaskName task) const;
  std::uint32_t thread_of(const std::string& tensor);
  std::uint32_t thread_of(Lane lane, std::size_t index) const;
  void name_thread(std::uint32_t thread, const std::string& name);
  void phase(const std::string& name, std::uint32_t thread, Nanoseconds from, const std::string& arguments);
  void put(const std::string& event);
  void write();

  const Operations& operations_;
  const Memory& memory_;
  int rank_;
  bool mark_cycles_;
  Clock clock_;
  Nanoseconds start_;
  std::ofstream file_;
  std::streamoff end_ = 0;  // of the events in the file, before the bracket
  bool empty_ = true;
  std::string waiting_;  // events that are not in the file yet
  Nanoseconds written_ = 0;
  std::unordered_map<std::uint32_t, Nanoseconds> submitted_;  // by handle
  std::unordered_map<std::uint32_t, Run> runs_;               // by instance
  std::map<TaskName, Work> works_;
  std::unordered_map<std::string, std::uint32_t> threads_;  // by tensor
  std::vector<std::vector<bool>> busy_{3};                  // lanes, by kind
};

}  // namespace casync
