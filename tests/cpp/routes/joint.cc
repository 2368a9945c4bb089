#include "routes/joint.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "casync/error.hpp"

namespace casync::test {

Joint::Joint(WorkflowRequest request, const std::function<void(WorkflowRequest&)>& own) : request_(std::move(request)) {
  std::size_t tasks = 0;
  for (std::uint32_t m = 0; m < request_.host_of.size(); ++m) {
    request_.member = m;
    if (own) own(request_);
    numel_.push_back(request_.shape.numel());
    members_.push_back(build_workflow(request_));
    first_.push_back(tasks);
    tasks += members_.back().tasks.size();
  }
  after_.resize(tasks);
  waits_.assign(tasks, 0);
  for (std::size_t m = 0; m < members_.size(); ++m) {
    for (std::size_t t = 0; t < members_[m].tasks.size(); ++t) {
      const Task& task = members_[m].tasks[t];
      for (std::uint32_t s = 0; s < task.successor_count; ++s) {
        const std::size_t next = first_[m] + members_[m].successors[task.first_successor + s];
        after_[first_[m] + t].push_back(next);
        ++waits_[next];
      }
    }
  }
  pair_up();
  walk();
  cover();
  count();
}

std::size_t Joint::bytes_of(const Workflow& workflow, const Task& task) const {
  if (task.data.place == Place::slot) return workflow.slots[task.data.slot].bytes;
  const Layout& layout = workflow.layout[task.partition];
  const Range& range = task.data.place == Place::input ? layout.input : layout.output;
  return static_cast<std::size_t>(range.size()) * size_of(request_.dtype);
}

void Joint::pair_up() {
  using Key = std::tuple<std::size_t, std::size_t, std::uint32_t>;  // from, to, tag
  std::map<Key, std::pair<std::size_t, std::size_t>> receives;      // member, task
  for (std::size_t m = 0; m < members_.size(); ++m) {
    for (std::size_t t = 0; t < members_[m].tasks.size(); ++t) {
      const Task& task = members_[m].tasks[t];
      if (task.primitive != Primitive::recv) continue;
      if (!receives.emplace(Key{task.peer, m, task.tag}, std::pair{m, t}).second)
        fault_ += "a message is received twice; ";
    }
  }
  for (std::size_t m = 0; m < members_.size(); ++m) {
    for (std::size_t t = 0; t < members_[m].tasks.size(); ++t) {
      const Task& task = members_[m].tasks[t];
      if (task.primitive != Primitive::send) continue;
      const auto at = receives.find({m, task.peer, task.tag});
      if (at == receives.end()) {
        fault_ += detail::concat("nobody receives tag ", task.tag, " from ", m, " to ", task.peer, "; ");
        continue;
      }
      const auto [to, index] = at->second;
      const Task& receive = members_[to].tasks[index];
      receives.erase(at);
      if (receive.partition != task.partition) fault_ += "sent and received for different partitions; ";
      if (receive.windowed != task.windowed) fault_ += "only one side knows of the window; ";
      if (bytes_of(members_[m], task) != bytes_of(members_[to], receive))
        fault_ += "sent and received lengths differ; ";
      after_[first_[m] + t].push_back(first_[to] + index);
      ++waits_[first_[to] + index];
    }
  }
  if (!receives.empty()) fault_ += detail::concat(receives.size(), " receives wait for nothing; ");
}

/// Longest chains of sends, encodes and decoded payloads.
void Joint::walk() {
  struct Chain {
    std::uint32_t hops = 0, encodes = 0, decodes = 0;
  };
  std::vector<Chain> before(after_.size());
  std::vector<std::size_t> waits = waits_;
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) ready.push_back(i);
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    const std::size_t i = ready.back();
    ready.pop_back();
    ++done;
    const auto m = static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), i) - first_.begin()) - 1;
    const Task& task = members_[m].tasks[i - first_[m]];
    Chain chain = before[i];
    if (task.primitive == Primitive::send) ++chain.hops;
    if (task.encode_to.place != Place::none) ++chain.encodes;
    for (std::uint32_t s = 0; !request_.codec->info().identity && s < task.source_count; ++s) {
      const Buffer source = members_[m].sources[task.first_source + s];
      if (source.place == Place::slot && !members_[m].slots[source.slot].raw) ++chain.decodes;
    }
    built_.hops = std::max(built_.hops, chain.hops);
    built_.encodes = std::max(built_.encodes, chain.encodes);
    built_.decodes = std::max(built_.decodes, chain.decodes);
    for (const std::size_t next : after_[i]) {
      before[next].hops = std::max(before[next].hops, chain.hops);
      before[next].encodes = std::max(before[next].encodes, chain.encodes);
      before[next].decodes = std::max(before[next].decodes, chain.decodes);
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  if (done != after_.size()) fault_ += "the joint graph has a cycle; ";
}

void Joint::cover() {
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
      const bool receives = task.primitive == Primitive::recv && task.data.place == Place::output;
      const bool copies = !reduces(request_.kind) && task.write_to.place == Place::output;
      if (task.deliver || receives || copies) ++delivered[task.partition];
    }
    for (std::size_t p = 0; p < delivered.size(); ++p) {
      if (delivered[p] != (workflow.layout[p].output.size() > 0 ? 1 : 0))
        fault_ += detail::concat("partition ", p, " is delivered ", delivered[p], " times; ");
    }
  }
}

void Joint::count() {
  std::vector<double> sent(members_.size(), 0), received(members_.size(), 0);
  std::map<std::pair<std::uint32_t, bool>, double> across;  // (host, out)
  for (std::size_t m = 0; m < members_.size(); ++m) {
    std::uint32_t messages = 0;
    for (const Task& task : members_[m].tasks) {
      const bool sends = task.primitive == Primitive::send;
      if (!sends && task.primitive != Primitive::recv) continue;
      const auto bytes = static_cast<double>(bytes_of(members_[m], task));
      if (request_.host_of[m] != request_.host_of[task.peer]) across[{request_.host_of[m], sends}] += bytes;
      messages += sends ? 1 : 0;
      (sends ? sent : received)[m] += bytes;
    }
    built_.messages = std::max(built_.messages, messages);
    built_.bytes = std::max({built_.bytes, sent[m], received[m]});
  }
  for (const auto& [link, bytes] : across) host_bytes_ = std::max(host_bytes_, bytes);
}

}  // namespace casync::test
