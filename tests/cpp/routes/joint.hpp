#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "casync/workflow.hpp"
#include "planner/statement.hpp"

namespace casync::test {

/// The workflows of all members of one operation as one graph, in which a receive follows the send it belongs to.
class Joint {
 public:
  /// `request.member` is set for each member in turn; then `own` says what else is a member's own.
  explicit Joint(WorkflowRequest request, const std::function<void(WorkflowRequest&)>& own = {});

  /// What is wrong, in words: sends and receives that do not pair up, differ in bytes, partition or window, cycles,
  /// partitions of the output that somebody does not write exactly once. Empty if all is well.
  std::string fault() const { return fault_; }
  /// As built, in the terms of state_costs.
  Statement built() const { return built_; }
  /// Bytes per direction over the link of the busiest host.
  double host_bytes() const { return host_bytes_; }

  const std::vector<Workflow>& members() const { return members_; }

 private:
  std::size_t bytes_of(const Workflow& workflow, const Task& task) const;
  void pair_up();
  void walk();
  void cover();
  void count();

  WorkflowRequest request_;
  std::vector<std::int64_t> numel_;  // per member
  std::vector<Workflow> members_;
  std::vector<std::size_t> first_;               // per member: number of its first task in the joint graph
  std::vector<std::vector<std::size_t>> after_;  // per joint task: successors
  std::vector<std::size_t> waits_;               // per joint task: predecessors
  std::string fault_;
  Statement built_;
  double host_bytes_ = 0;
};

}  // namespace casync::test
