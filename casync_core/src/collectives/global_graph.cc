#include "collectives/global_graph.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "casync/error.hpp"

namespace casync {

GlobalGraph::GlobalGraph(WorkflowRequest request, const std::function<void(WorkflowRequest&)>& own)
    : request_(std::move(request)) {
  for (std::uint32_t m = 0; m < request_.host_of.size(); ++m) {
    request_.member = m;
    if (own) own(request_);
    numel_.push_back(request_.shape.numel());
    members_.push_back(build_workflow(request_));
    first_.push_back(member_.size());
    member_.resize(member_.size() + members_.back().tasks.size(), m);
  }
  receive_.resize(member_.size(), kNobody);
  facts_.resize(member_.size());
  pair_up();
  walk();
  check_coverage();
}

template <typename Visit>
void GlobalGraph::for_each_after(std::size_t i, Visit visit) const {
  const Workflow& workflow = members_[member_[i]];
  const Task& before = task(i);
  for (std::uint32_t s = 0; s < before.successor_count; ++s)
    visit(first_[member_[i]] + workflow.successors[before.first_successor + s]);
  if (receive_[i] != kNobody) visit(receive_[i]);
}

std::size_t GlobalGraph::bytes_of(const Workflow& workflow, const Task& task) const {
  if (task.data.kind == BufferKind::slot) return workflow.slots[task.data.slot].bytes;
  const Layout& layout = workflow.layout[task.partition];
  const Range& range = task.data.kind == BufferKind::input ? layout.input : layout.output;
  return static_cast<std::size_t>(range.size()) * size_of(request_.dtype);
}

void GlobalGraph::pair_up() {
  using Message = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::size_t>;  // from, to, tag; task
  std::vector<Message> sends, receives;
  for (std::size_t i = 0; i < member_.size(); ++i) {
    const Task& one = task(i);
    if (one.primitive == Primitive::send) sends.emplace_back(member_[i], one.peer, one.tag, i);
    if (one.primitive == Primitive::recv) receives.emplace_back(one.peer, member_[i], one.tag, i);
  }
  std::ranges::sort(sends);
  std::ranges::sort(receives);
  const auto key = [](const Message& message) {
    return std::tuple(std::get<0>(message), std::get<1>(message), std::get<2>(message));
  };
  auto at = receives.begin();
  std::size_t unmet = receives.size();
  for (auto next = receives.begin(); next != receives.end(); ++next) {
    if (next != receives.begin() && key(*next) == key(*std::prev(next))) fault_ += "a message is received twice; ";
  }
  for (const Message& message : sends) {
    while (at != receives.end() && key(*at) < key(message)) ++at;
    const auto& [from, to, tag, i] = message;
    if (at == receives.end() || key(*at) != key(message)) {
      fault_ += detail::concat("nobody receives tag ", tag, " from ", from, " to ", to, "; ");
      continue;
    }
    const std::size_t met = std::get<3>(*at++);
    --unmet;
    const Task& send = task(i);
    const Task& receive = task(met);
    if (receive.partition != send.partition) fault_ += "sent and received for different partitions; ";
    if (receive.needs_credit != send.needs_credit) fault_ += "only one side knows that it needs credit; ";
    if (bytes_of(members_[from], send) != bytes_of(members_[to], receive))
      fault_ += "sent and received lengths differ; ";
    receive_[i] = met;
  }
  if (unmet > 0) fault_ += detail::concat(unmet, " receives wait for nothing; ");
}

/// Longest chains of sends, encodes and decoded payloads.
void GlobalGraph::walk() {
  std::vector<std::uint32_t> waits(member_.size(), 0);
  for (std::size_t i = 0; i < member_.size(); ++i) for_each_after(i, [&](std::size_t next) { ++waits[next]; });
  std::vector<std::size_t>& order = order_;
  order.reserve(member_.size());
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) order.push_back(i);
  }
  for (std::size_t done = 0; done < order.size(); ++done) {
    const std::size_t i = order[done];
    const Task& one = task(i);
    TaskFacts& facts = facts_[i];
    if (one.encode_to.kind != BufferKind::none) ++facts.encodes;
    if (!request_.codec->info().identity) facts.decodes += payloads_among(members_[member_[i]], one);
    const std::uint32_t sends = facts.sends_before + (one.primitive == Primitive::send ? 1 : 0);
    for_each_after(i, [&](std::size_t next) {
      facts_[next].sends_before = std::max(facts_[next].sends_before, sends);
      facts_[next].encodes = std::max(facts_[next].encodes, facts.encodes);
      facts_[next].decodes = std::max(facts_[next].decodes, facts.decodes);
      if (--waits[next] == 0) order.push_back(next);
    });
  }
  if (order.size() != member_.size()) fault_ += "the global graph has a cycle; ";
  std::vector<std::uint32_t> latest(member_.size());                   // layer
  std::set<std::tuple<Primitive, std::uint8_t, std::uint32_t>> fixed;  // what is done in a layer and no other
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    TaskFacts& facts = facts_[*i];
    facts.layer = latest[*i] = facts.sends_before;
    std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
    for_each_after(*i, [&](std::size_t next) {
      const bool sends = task(next).primitive == Primitive::send;
      if (!sends && !facts_[next].leads_to_send) return;
      facts.leads_to_send = true;
      if (task(next).primitive != Primitive::recv) last = std::min(last, latest[next]);
    });
    const Task& one = task(*i);
    if (computes(one) && last != std::numeric_limits<std::uint32_t>::max()) latest[*i] = std::max(last, facts.layer);
    if (computes(one) && latest[*i] == facts.layer) fixed.emplace(one.primitive, one.round, facts.layer);
  }
  for (const std::size_t i : order) {
    if (latest[i] == facts_[i].layer) continue;
    for (std::uint32_t layer = facts_[i].sends_before; layer <= latest[i]; ++layer) {
      if (!fixed.contains({task(i).primitive, task(i).round, layer})) continue;
      facts_[i].layer = layer;
      break;
    }
  }
}

void GlobalGraph::check_coverage() {
  for (std::size_t m = 0; m < members_.size(); ++m) {
    const Workflow& workflow = members_[m];
    std::vector<Range> partitions = workflow.partitions;
    if (request_.kind == OpKind::alltoall) std::ranges::sort(partitions, {}, &Range::begin);
    std::int64_t end = 0;
    for (const Range& range : partitions) {
      if (range.size() == 0) continue;
      if (range.begin != end) fault_ += "the partitions leave a gap; ";
      end = range.end;
    }
    if (end != numel_[m]) fault_ += "the partitions do not cover the gradient; ";
    std::vector<int> delivered(workflow.partitions.size(), 0);
    for (const Task& task : workflow.tasks) {
      const bool receives = task.primitive == Primitive::recv && task.data.kind == BufferKind::output;
      const bool copies = !reduces(request_.kind) && task.write_to.kind == BufferKind::output;
      if (task.deliver || receives || copies) ++delivered[task.partition];
    }
    for (std::size_t p = 0; p < delivered.size(); ++p) {
      if (delivered[p] != (workflow.layout[p].output.size() > 0 ? 1 : 0))
        fault_ += detail::concat("partition ", p, " is delivered ", delivered[p], " times; ");
    }
  }
}

std::uint32_t payloads_among(const Workflow& workflow, const Task& task) {
  std::uint32_t payloads = 0;
  for (std::uint32_t s = 0; s < task.source_count; ++s) {
    const Buffer source = workflow.sources[task.first_source + s];
    if (source.kind == BufferKind::slot && !workflow.slots[source.slot].raw) ++payloads;
  }
  return payloads;
}

}  // namespace casync
