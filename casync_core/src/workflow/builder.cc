#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "casync/error.hpp"
#include "casync/plan.hpp"
#include "casync/workflow_builder.hpp"

namespace casync {

std::vector<Range> cut_evenly(const Codec& codec, const Shape& gradient, std::uint32_t count) {
  std::vector<Range> partitions;
  const std::int64_t numel = gradient.numel();
  std::int64_t begin = 0;
  for (std::int64_t k = 1; k <= count && begin < numel; ++k) {
    const std::int64_t wanted = numel / count * k + numel % count * k / count;  // numel * k / count, without overflow
    const std::int64_t end = wanted == numel ? numel : codec.cut(gradient, wanted);
    if (end <= begin) continue;
    partitions.push_back({begin, end});
    begin = end;
  }
  return partitions;
}

WorkflowBuilder::WorkflowBuilder(const WorkflowRequest& request) : request_(request) {
  workflow_.contributions = members();
  if (request.route != nullptr) owners_ = request.route->owners(request.host_of);
  std::vector<Range> partitions = cut_evenly(*request.codec, request.shape, request.partitions);
  std::vector<Layout> layout;
  for (const Range& range : partitions) layout.push_back({range, range, request.shape, 0});
  set_partitions(std::move(partitions), std::move(layout));
}

void WorkflowBuilder::set_partitions(std::vector<Range> partitions, std::vector<Layout> layout) {
  workflow_.partitions = std::move(partitions);
  workflow_.layout = std::move(layout);
  workflow_.reserve.assign(workflow_.partitions.size(), 0);
  user_.assign(workflow_.partitions.size(), {});
  result_.assign(workflow_.partitions.size(), {});
}

std::vector<std::uint32_t> WorkflowBuilder::sent() const {
  const Range range = partitions_of(request_.turn, request_.period, partitions());
  std::vector<std::uint32_t> sent(static_cast<std::size_t>(range.size()));
  std::iota(sent.begin(), sent.end(), static_cast<std::uint32_t>(range.begin));
  return sent;
}

std::uint32_t WorkflowBuilder::position(std::uint32_t partition) const {
  if (owners_.empty()) return 0;
  return static_cast<std::uint32_t>((std::uint64_t{request_.first_owner} + partition) % owners_.size());
}

std::size_t WorkflowBuilder::raw_bytes(std::uint32_t partition) const {
  return static_cast<std::size_t>(workflow_.partitions[partition].size()) * size_of(request_.dtype);
}

Buffer WorkflowBuilder::payload_slot(std::uint32_t partition, int round) {
  const std::size_t bytes =
      request_.codec->bound(workflow_.layout[partition].gradient, request_.dtype, workflow_.coded(partition), round);
  return add_slot({partition, static_cast<std::uint8_t>(round), identity(), bytes});
}

Buffer WorkflowBuilder::raw_slot(std::uint32_t partition) {
  return add_slot({partition, 0, true, raw_bytes(partition)});
}

Buffer WorkflowBuilder::values_slot(std::uint32_t partition) {
  return add_slot({partition, 0, true, static_cast<std::size_t>(request_.codec->agreed()) * sizeof(float)});
}

Buffer WorkflowBuilder::nonzeros_slot(std::uint32_t partition) {
  const std::size_t bytes =
      make_codec("nonzeros")
          ->bound(workflow_.layout[partition].gradient, request_.dtype, workflow_.coded(partition), 0);
  return add_slot({partition, 0, false, bytes, Form::nonzeros});
}

Buffer WorkflowBuilder::part_slot(std::uint32_t partition, int round, std::int64_t elements) {
  return add_slot({partition, static_cast<std::uint8_t>(round), false,
                   static_cast<std::size_t>(elements) * element_bytes(round), Form::part});
}

std::int64_t WorkflowBuilder::elements_of(Buffer payload) const {
  const Slot& slot = workflow_.slots[payload.slot];
  return static_cast<std::int64_t>(slot.bytes / element_bytes(slot.round));
}

std::size_t WorkflowBuilder::element_bytes(int round) const {
  return size_of(request_.codec->info().rounds[static_cast<std::size_t>(round)].element);
}

Buffer WorkflowBuilder::add_slot(Slot slot) {
  if (workflow_.slots.size() > std::numeric_limits<std::uint16_t>::max()) {
    throw InvalidArgument(detail::concat("a plan of ", request_.partitions, " partitions needs more than ",
                                         workflow_.slots.size(), " buffers on rank ", request_.member,
                                         "; plan it in fewer partitions"));
  }
  workflow_.slots.push_back(slot);
  workflow_.reserve[slot.partition] += slot.bytes;
  slots_.emplace_back();
  return {BufferKind::slot, static_cast<std::uint16_t>(workflow_.slots.size() - 1)};
}

void WorkflowBuilder::compute(Primitive primitive, std::uint32_t partition, std::span<const Buffer> sources,
                              const ComputeOptions& options) {
  Task task;
  task.primitive = primitive;
  task.partition = partition;
  task.role = options.role;
  task.round = options.round;
  task.feedback = options.held || (options.feedback && request_.codec->info().feedback != Feedback::none);
  task.final = options.final;
  task.deliver = options.deliver;
  task.settles = options.settles;
  task.again = options.again;
  task.holds_back = options.holds_back && request_.codec->info().feedback != Feedback::none;
  if (options.uncoded && !identity()) task.form = Form::elements;
  if (options.held) task.form = Form::held;
  task.encode_to = options.encode_to;
  task.write_to = options.write_to;
  task.previous = options.previous;
  task.first_source = static_cast<std::uint32_t>(workflow_.sources.size());
  task.source_count = static_cast<std::uint32_t>(sources.size());
  workflow_.sources.insert(workflow_.sources.end(), sources.begin(), sources.end());
  task.elements = options.elements;
  const auto take_form = [&](Buffer buffer) {
    if (buffer.kind == BufferKind::slot && workflow_.slots[buffer.slot].form != Form::payload)
      task.form = workflow_.slots[buffer.slot].form;
  };
  for (const Buffer& source : sources) take_form(source);
  take_form(options.encode_to);
  take_form(options.write_to);
  std::vector<std::pair<Buffer, bool>> accesses;
  for (const Buffer& source : sources) accesses.emplace_back(source, false);
  if (options.previous.kind != BufferKind::none) accesses.emplace_back(options.previous, false);
  if (options.encode_to.kind != BufferKind::none) accesses.emplace_back(options.encode_to, true);
  if (options.write_to.kind != BufferKind::none) accesses.emplace_back(options.write_to, true);
  add(task, accesses);
  if (task.settles && primitive == Primitive::merge) settled_ = std::ssize(workflow_.tasks) - 1;
}

void WorkflowBuilder::send(std::uint32_t partition, std::uint32_t peer, std::uint32_t tag, Buffer from,
                           bool needs_credit) {
  Task task;
  task.primitive = Primitive::send;
  task.partition = partition;
  task.peer = peer;
  task.tag = tag;
  task.data = from;
  task.needs_credit = needs_credit;
  const std::pair<Buffer, bool> access[] = {{from, false}};
  add(task, access);
}

void WorkflowBuilder::recv(std::uint32_t partition, std::uint32_t peer, std::uint32_t tag, Buffer into,
                           bool needs_credit, bool combined) {
  Task task;
  task.primitive = Primitive::recv;
  task.partition = partition;
  task.peer = peer;
  task.tag = tag;
  task.data = into;
  task.needs_credit = needs_credit;
  task.combined = combined;
  const std::pair<Buffer, bool> access[] = {{into, true}};
  add(task, access);
}

WorkflowBuilder::Access& WorkflowBuilder::access(std::uint32_t partition, Buffer buffer) {
  if (buffer.kind == BufferKind::slot) return slots_[buffer.slot];
  const bool apart = request_.kind == OpKind::alltoall && buffer.kind == BufferKind::output;
  return apart ? result_[partition] : user_[partition];
}

void WorkflowBuilder::add(Task task, std::span<const std::pair<Buffer, bool>> accesses) {
  const auto index = static_cast<std::uint32_t>(workflow_.tasks.size());
  std::set<std::uint32_t> before;
  for (const auto& [buffer, writes] : accesses) {
    const Access& seen = access(task.partition, buffer);
    if (seen.writer >= 0) before.insert(static_cast<std::uint32_t>(seen.writer));
    CASYNC_CHECK(writes || buffer.kind != BufferKind::slot || seen.writer >= 0, "task ", index, " reads an empty slot");
    if (writes) before.insert(seen.readers.begin(), seen.readers.end());
  }
  for (const auto& [buffer, writes] : accesses) {
    Access& now = access(task.partition, buffer);
    if (writes) {
      now.writer = index;
      now.readers.clear();
    } else {
      now.readers.push_back(index);
    }
  }
  if (computes(task) && settled_ >= 0) before.insert(static_cast<std::uint32_t>(settled_));
  before.erase(index);
  for (const std::uint32_t task_before : before) followers_[task_before].push_back(index);
  task.dependencies = static_cast<std::uint32_t>(before.size());
  workflow_.tasks.push_back(task);
  followers_.emplace_back();
}

Workflow WorkflowBuilder::finish() {
  std::set<std::tuple<bool, std::uint32_t, std::uint32_t>> messages;
  for (std::size_t i = 0; i < workflow_.tasks.size(); ++i) {
    Task& task = workflow_.tasks[i];
    task.first_successor = static_cast<std::uint32_t>(workflow_.successors.size());
    task.successor_count = static_cast<std::uint32_t>(followers_[i].size());
    for (const std::uint32_t follower : followers_[i]) {
      CASYNC_CHECK(follower > i, "the workflow has a cycle through task ", i);
      workflow_.successors.push_back(follower);
    }
    const bool sends = task.primitive == Primitive::send;
    if (sends || task.primitive == Primitive::recv) {
      CASYNC_CHECK(messages.emplace(sends, task.peer, task.tag).second, "tag ", task.tag, " is used twice");
    }
  }
  return std::move(workflow_);
}

}  // namespace casync
