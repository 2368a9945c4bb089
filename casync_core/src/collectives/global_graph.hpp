#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "casync/workflow.hpp"

namespace casync {

/// The workflows of all members of one operation as one graph, in which a receive follows the send it belongs to. What
/// a route costs is read from it (planner/route_costs.hpp), and what is wrong with a route is seen in it.
class GlobalGraph {
 public:
  /// `request.member` is set for each member in turn; then `own` says what else is a member's own.
  explicit GlobalGraph(WorkflowRequest request, const std::function<void(WorkflowRequest&)>& own = {});

  /// What is wrong, in words: sends and receives that do not pair up, differ in bytes, partition or credit, cycles,
  /// partitions of the output that somebody does not write exactly once. Empty if all is well.
  std::string fault() const { return fault_; }

  const std::vector<Workflow>& members() const { return members_; }

  /// Of one task of one member.
  struct TaskFacts {
    std::uint32_t sends_before = 0;  ///< on the longest chain that leads to it
    std::uint32_t encodes = 0;       ///< likewise, its own among them
    std::uint32_t decodes = 0;       ///< likewise: payloads that are decoded, one after the other
    bool leads_to_send = false;      ///< some send waits for it
    std::uint32_t layer = 0;         ///< sends_before; of what can wait, that in which others do the same
  };
  const TaskFacts& facts(std::size_t member, std::size_t task) const { return facts_[first_[member] + task]; }

  // By global number: the members' tasks one after the other.
  /// Every task after those that it waits for.
  const std::vector<std::size_t>& order() const { return order_; }
  std::pair<std::uint32_t, const Task*> at(std::size_t number) const { return {member_[number], &task(number)}; }
  /// The receive of a send that somebody receives.
  std::size_t receive_of(std::size_t number) const { return receive_[number]; }

  /// Bytes that a send or a recv moves.
  std::size_t bytes_of(const Workflow& workflow, const Task& task) const;

 private:
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  const Task& task(std::size_t i) const { return members_[member_[i]].tasks[i - first_[member_[i]]]; }
  /// Calls `visit` with every task that waits for `i`.
  template <typename Visit>
  void for_each_after(std::size_t i, Visit visit) const;
  void pair_up();
  void walk();
  void check_coverage();

  WorkflowRequest request_;
  std::vector<std::int64_t> numel_;  // per member
  std::vector<Workflow> members_;
  std::vector<std::size_t> first_;     // per member: global number of its first task
  std::vector<std::uint32_t> member_;  // per task
  std::vector<std::size_t> receive_;   // per task: of a send, the one that waits for it
  std::vector<TaskFacts> facts_;       // per task
  std::vector<std::size_t> order_;
  std::string fault_;
};

/// Payloads among the sources of a compute task; the others are raw elements.
std::uint32_t payloads_among(const Workflow& workflow, const Task& task);

}  // namespace casync
