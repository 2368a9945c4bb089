#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "task/task_graph.hpp"

namespace casync::test {

/// The rule of Instance, stated once more and from the other side: for each task of a run on a stream, which of the
/// tasks before it must be over, and which need only be launched. It sees one rank's events and actions.
class LaunchOrder final : public Observer {
 public:
  explicit LaunchOrder(const Engine& engine) : engine_(engine) {}

  void on_event(const Event& event, Nanoseconds now) override;
  void on_decide(Nanoseconds /*now*/) override { decides_ = true; }
  void on_action(const Action& action) override;
  void on_return() override;

  /// The first thing that was out of order; empty: nothing was.
  const std::string& fault() const { return fault_; }

 private:
  struct Run {
    std::shared_ptr<const TaskGraph> graph;
    std::vector<std::vector<std::uint32_t>> before;  // per task
    std::vector<bool> opened;                        // per partition
    std::set<std::uint32_t> given, launched, over;   // tasks: to the stream, by it, altogether
  };
  bool may_go(const Run& run, std::uint32_t task) const;
  void expect_ready(std::uint32_t instance, std::uint32_t task, const char* what);

  const Engine& engine_;
  bool decides_ = false;
  std::unordered_map<std::uint32_t, bool> on_stream_;  // by handle
  std::unordered_map<std::uint32_t, Run> runs_;        // by instance
  std::string fault_;
};

}  // namespace casync::test
