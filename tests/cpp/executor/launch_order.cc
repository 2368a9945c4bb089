#include "executor/launch_order.hpp"

#include <algorithm>

#include "casync/error.hpp"

namespace casync::test {

void LaunchOrder::on_event(const Event& event, Nanoseconds /*now*/) {
  const auto note = [&](std::uint32_t instance, std::uint32_t task, auto member) {
    if (const auto at = runs_.find(instance); at != runs_.end()) (at->second.*member).insert(task);
  };
  std::visit(
      Overloads{[&](const event::Submit& e) { on_stream_[e.handle] = e.on_stream; },
                [&](const event::Launched& e) { note(e.instance, e.task, &Run::launched); },
                [&](const event::Ran& e) { note(e.instance, e.task, &Run::over); },
                [&](const event::Sent& e) { note(e.instance, e.task, &Run::over); },
                [&](const event::Received& e) { note(e.instance, e.task, &Run::over); }, [](const auto& /*other*/) {}},
      event);
}

void LaunchOrder::on_action(const Action& action) {
  std::visit(Overloads{[&](const action::Begin& a) {
                         if (!on_stream_[a.handle]) return;
                         Run& run = runs_[a.instance] = {};
                         run.graph = a.graph;
                         const Workflow& workflow = a.graph->workflow;
                         run.before.resize(workflow.tasks.size());
                         run.opened.resize(workflow.partitions.size());
                         for (std::uint32_t t = 0; t < workflow.tasks.size(); ++t) {
                           const Task& task = workflow.tasks[t];
                           for (std::uint32_t s = 0; s < task.successor_count; ++s)
                             run.before[workflow.successors[task.first_successor + s]].push_back(t);
                         }
                       },
                       [&](const action::Reserve& a) {
                         const auto at = runs_.find(a.instance);
                         if (at != runs_.end()) at->second.opened[a.partition] = true;
                       },
                       [&](const action::Run& a) {
                         for (const auto& [instance, task] : a.batch) {
                           const auto at = runs_.find(instance);
                           if ((at != runs_.end()) != (a.where == action::Where::stream))
                             fault_ = detail::concat("task ", task, " runs ", name_of(a.where));
                           expect_ready(instance, task, "given to the stream");
                           if (at != runs_.end()) at->second.given.insert(task);
                         }
                       },
                       [&](const action::Send& a) { expect_ready(a.instance, a.task, "sent"); },
                       [&](const action::Accept& a) { expect_ready(a.instance, a.task, "received"); },
                       [&](const action::Finish& a) { runs_.erase(a.instance); },  //
                       [](const auto& /*other*/) {}},
             action);
}

bool LaunchOrder::may_go(const Run& run, std::uint32_t task) const {
  const auto& tasks = run.graph->workflow.tasks;
  // The length of a payload that its codec chooses is known when it is there, as is that of what zeros were left out
  // of.
  const bool varies = !run.graph->codec->info().fixed_size ||
                      std::ranges::count(run.graph->workflow.slots, Form::nonzeros, &Slot::form) > 0;
  const bool streams = computes(tasks[task]) && !varies;
  const auto is_there = [&](std::uint32_t before) {
    return run.over.contains(before) || (streams && computes(tasks[before]) && run.launched.contains(before));
  };
  return run.opened[tasks[task].partition] && std::ranges::all_of(run.before[task], is_there);
}

void LaunchOrder::expect_ready(std::uint32_t instance, std::uint32_t task, const char* what) {
  const auto at = runs_.find(instance);
  if (at == runs_.end() || may_go(at->second, task) || !fault_.empty()) return;
  fault_ = detail::concat("task ", task, " of instance ", instance, " is ", what, " before what it waits for");
}

/// After a decision nothing is left that could be launched.
void LaunchOrder::on_return() {
  if (!std::exchange(decides_, false) || engine_.failed() || !fault_.empty()) return;
  for (const auto& [instance, run] : runs_) {
    for (std::uint32_t task = 0; task < run.before.size(); ++task) {
      if (!computes(run.graph->workflow.tasks[task]) || run.given.contains(task) || !may_go(run, task)) continue;
      fault_ = detail::concat("task ", task, " of instance ", instance, " could be launched, and is not");
    }
  }
}

}  // namespace casync::test
