#include "engine/task_manager.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "casync/error.hpp"
#include "coordinator/queue_up.hpp"

namespace casync {

TaskManager::TaskManager(const Options& options, LinkPolicy& policy, Outbox& out)
    : options_(options),
      policy_(policy),
      out_(out),
      admission_(options.pool_bytes, options.members),
      parked_(options.members) {}

bool TaskManager::begin(std::uint32_t instance, std::uint32_t op, std::uint32_t sequence,
                        const std::shared_ptr<const TaskGraph>& graph, How how) {
  if (instance >= runs_.size()) runs_.resize(instance + 1);
  Run& run = runs_[instance];
  run.eager = how.eager;
  run.by_lane = how.by_lane;
  run.priority = how.priority;
  run.op = op;
  run.sequence = sequence;
  run.order = begun_++;
  run.held = run.closed = 0;
  run.tasks.begin(graph, how.on_stream);
  const TaskGraph& of = run.tasks.graph();
  run.slot_bytes.clear();
  if (of.codec_chooses_length()) {
    for (const Slot& slot : of.workflow.slots) run.slot_bytes.push_back(slot.bytes);
  }
  const auto partitions = static_cast<std::uint32_t>(of.workflow.reserve.size());
  for (std::uint32_t p = 0; p < partitions; ++p) run.closed += of.tasks_of_partition[p] > 0 ? 1 : 0;
  if (how.eager) {
    for (std::uint32_t p = 0; p < partitions; ++p) open(instance, p);
    return run.tasks.done();
  }
  // All are counted, those too in which this rank has nothing to do: tickets have one number on all ranks.
  tickets_.clear();
  for (std::uint32_t p = 0; p < partitions; ++p) {
    tickets_.push_back({of.tasks_of_partition[p] > 0 ? instance : Admission::kUnused, p, of.workflow.reserve[p]});
  }
  run.first_ticket = admission_.begin(tickets_);
  return run.tasks.done();
}

void TaskManager::open_partitions() {
  Admission::Ticket ticket;
  while (admission_.next(ticket)) {
    if (ticket.instance == Admission::kUnused) continue;
    for (const std::uint32_t peer : tasks_of(ticket.instance).graph().credit_peers[ticket.partition])
      admission_.want_credit(peer);
    open(ticket.instance, ticket.partition);
  }
  for (const auto& [peer, limit] : admission_.credit_limits()) out_.tell(peer, Credit{limit});
}

void TaskManager::open(std::uint32_t instance, std::uint32_t partition) {
  out_.emit(action::Reserve{instance, partition});
  if (runs_[instance].tasks.graph().tasks_of_partition[partition] > 0) --runs_[instance].closed;
  ready_.clear();
  runs_[instance].tasks.open_partition(partition, ready_);
  for (const std::uint32_t task : ready_) make_ready(instance, task);
}

void TaskManager::note_bytes(std::uint32_t instance, std::uint32_t task_index, std::uint64_t bytes) {
  Run& run = runs_[instance];
  if (run.slot_bytes.empty()) return;
  const Task& task = run.tasks.graph().workflow.tasks[task_index];
  const Buffer& payload = task.primitive == Primitive::recv ? task.data : task.encode_to;
  if (payload.kind == BufferKind::slot) run.slot_bytes[payload.slot] = bytes;
}

void TaskManager::launched(std::uint32_t instance, std::uint32_t task_index) {
  ready_.clear();
  runs_[instance].tasks.launch(task_index, ready_);
  for (const std::uint32_t task : ready_) make_ready(instance, task);
}

bool TaskManager::complete(std::uint32_t instance, std::uint32_t task_index) {
  Run& run = runs_[instance];
  ready_.clear();
  const std::uint32_t partition = run.tasks.graph().workflow.tasks[task_index].partition;
  if (run.tasks.complete(task_index, ready_)) {
    out_.emit(action::Release{instance, partition});
    if (!run.eager) admission_.release(run.tasks.graph().workflow.reserve[partition]);
  }
  for (const std::uint32_t task : ready_) make_ready(instance, task);
  return run.tasks.done();
}

void TaskManager::make_ready(std::uint32_t instance, std::uint32_t task) {
  switch (tasks_of(instance).graph().workflow.tasks[task].primitive) {
    case Primitive::encode:
    case Primitive::decode:
    case Primitive::merge:
      to_run_.push_back({instance, task});
      break;
    case Primitive::send:
      send(instance, task);
      break;
    case Primitive::recv:
      receive(instance, task);
      break;
  }
}

void TaskManager::run_ready() {
  if (to_run_.empty()) return;
  const auto priority = [this](const action::Run::Task& one) { return runs_[one.instance].priority; };
  if (!std::ranges::is_sorted(to_run_, std::greater(), priority)) {
    std::ranges::stable_sort(to_run_, std::greater(), priority);
  }
  const auto is_on_host = [this](const action::Run::Task& one) { return !runs_[one.instance].tasks.on_stream(); };
  const auto on_stream = std::ranges::stable_partition(to_run_, is_on_host);
  if (!on_stream.empty()) run(on_stream, action::Where::stream);
  run_on_host({to_run_.begin(), on_stream.begin()});
  to_run_.clear();
}

void TaskManager::run_on_host(std::span<const action::Run::Task> ready) {
  if (ready.empty()) return;
  const auto weight_of = [this](const action::Run::Task& one) {
    const TaskGraph& graph = runs_[one.instance].tasks.graph();
    return graph.weight(graph.workflow.tasks[one.task]);
  };
  std::size_t largest = 0;
  std::size_t all = 0;
  for (const action::Run::Task& one : ready) {
    const std::size_t weight = weight_of(one);
    largest = std::max(largest, weight);
    all += weight;
  }
  if (largest <= options_.at_once_bytes && all <= options_.batch_bytes) {
    run(ready, action::Where::at_once);
  } else {
    std::size_t first = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      bytes += weight_of(ready[i]);
      if (bytes < options_.batch_bytes && i + 1 < ready.size()) continue;
      run(ready.subspan(first, i + 1 - first), action::Where::pool);
      first = i + 1;
      bytes = 0;
    }
  }
}

void TaskManager::run(std::span<const action::Run::Task> batch, action::Where where) {
  for (const action::Run::Task& one : batch) ++runs_[one.instance].computing;
  out_.emit(action::Run{batch, where});
}

SendRequest TaskManager::request(std::uint32_t instance, std::uint32_t task_index) const {
  const Run& run = runs_[instance];
  const TaskGraph& graph = run.tasks.graph();
  const Task& task = graph.workflow.tasks[task_index];
  const bool chosen = task.data.kind == BufferKind::slot && !run.slot_bytes.empty();
  const std::uint64_t bytes = chosen ? run.slot_bytes[task.data.slot] : graph.message_bytes(task);
  return {instance, task_index, task.peer, bytes, run.priority};
}

bool TaskManager::inlined(const SendRequest& request) const {
  return request.bytes <= options_.inline_bytes && !runs_[request.instance].by_lane;
}

void TaskManager::send(std::uint32_t instance, std::uint32_t task_index) {
  const Run& run = runs_[instance];
  const Task& task = run.tasks.graph().workflow.tasks[task_index];
  const SendRequest wanted = request(instance, task_index);
  ++runs_[instance].held;
  const std::uint64_t ticket = run.first_ticket + task.partition;
  if (task.needs_credit && !run.eager && !admission_.may_send(wanted.peer, ticket)) {
    queue_up(parked_[wanted.peer], {ticket, wanted}, [](const Parked& send) { return send.request.priority; });
    ++parked_count_;
  } else {
    release(wanted);
  }
}

/// Nothing but its link is in the way of a send.
void TaskManager::release(const SendRequest& request) {
  if (inlined(request)) {
    emit(request, action::Send::Way::in_head);
  } else {
    policy_.add(request);
  }
}

/// What goes by the lane of a device goes alone: a bulk is put together in the host's memory.
void TaskManager::emit(std::span<const SendRequest> batch) {
  // The announcement is in a head, which has room for an inlined message.
  const std::size_t most = std::max<std::size_t>(options_.inline_bytes / kBulkPartBytes, 1);
  together_.clear();
  for (const SendRequest& send : batch) {
    if (runs_[send.instance].by_lane) {
      emit(send, action::Send::Way::as_body);
    } else {
      together_.push_back(send);
    }
  }
  for (std::span<const SendRequest> left = together_; !left.empty();) {
    const std::span<const SendRequest> bulk = left.first(std::min(left.size(), most));
    const bool alone = bulk.size() == 1;
    for (const SendRequest& send : bulk) emit(send, alone ? action::Send::Way::as_body : action::Send::Way::in_bulk);
    if (!alone) out_.emit(action::SendBulk{bulk.front().peer, static_cast<std::uint32_t>(bulk.size())});
    left = left.subspan(bulk.size());
  }
}

void TaskManager::emit(const SendRequest& request, action::Send::Way way) {
  const Run& run = runs_[request.instance];
  --runs_[request.instance].held;
  const MessageKey key{run.op, run.sequence, run.tasks.graph().workflow.tasks[request.task].tag};
  out_.emit(action::Send{request.instance, request.task, request.peer, key, way});
}

void TaskManager::sent(std::uint32_t instance, std::uint32_t task) {
  const SendRequest left = request(instance, task);
  if (!inlined(left)) policy_.sent(left.peer, left.bytes);
}

void TaskManager::allow(Rank peer, std::uint64_t limit) {
  admission_.allow(peer, limit);
  const auto open = [&](const Parked& send) { return admission_.may_send(peer, send.ticket); };
  for (const Parked& send : parked_[peer]) {
    if (open(send)) release(send.request);
  }
  parked_count_ -= std::erase_if(parked_[peer], open);
}

void TaskManager::arrived(std::uint32_t instance, std::uint32_t task, std::uint64_t message_id) {
  if (runs_[instance].tasks.armed(task)) {
    out_.emit(action::Accept{instance, task, message_id});
  } else {
    runs_[instance].waiting.push_back({task, message_id});
  }
}

void TaskManager::receive(std::uint32_t instance, std::uint32_t task) {
  std::vector<Waiting>& waiting = runs_[instance].waiting;
  const auto here = [&](const Waiting& message) { return message.task == task; };
  const auto at = std::find_if(waiting.begin(), waiting.end(), here);
  if (at == waiting.end()) return;
  const std::uint64_t message_id = at->message_id;
  waiting.erase(at);
  out_.emit(action::Accept{instance, task, message_id});
}

TaskManager::Messages TaskManager::from(std::uint32_t peer, std::uint32_t instance) const {
  const Run& run = runs_[instance];
  const std::vector<Task>& tasks = run.tasks.graph().workflow.tasks;
  Messages result = Messages::none_planned;
  for (std::uint32_t index = 0; index < tasks.size(); ++index) {
    if (tasks[index].primitive != Primitive::recv || tasks[index].peer != peer) continue;
    const auto is_it = [&](const Waiting& message) { return message.task == index; };
    if (!run.tasks.done(index) && std::ranges::none_of(run.waiting, is_it)) return Messages::missing;
    result = Messages::all_here;
  }
  return result;
}

TaskManager::Standing TaskManager::standing(std::uint32_t instance) const {
  constexpr std::size_t kListed = 8;
  const Run& run = runs_[instance];
  Standing found;
  std::size_t more = 0;
  const std::vector<Task>& tasks = run.tasks.graph().workflow.tasks;
  for (std::uint32_t index = 0; index < tasks.size(); ++index) {
    const Task& task = tasks[index];
    if (run.tasks.done(index) || !run.tasks.armed(index)) continue;
    const bool receives = task.primitive == Primitive::recv;
    const bool travels = receives || task.primitive == Primitive::send;
    if (travels && std::ranges::find(found.peers, task.peer) == found.peers.end()) found.peers.push_back(task.peer);
    if (found.left.size() == kListed) {
      ++more;
      continue;
    }
    const std::string of = detail::concat(" of partition ", task.partition);
    found.left.push_back(receives  ? detail::concat("a message", of, " from rank ", task.peer, " has not come")
                         : travels ? detail::concat("a message", of, " to rank ", task.peer, " has not left")
                                   : detail::concat("a worker is at the ", name_of(task.primitive), of));
  }
  if (more > 0) found.left.push_back(detail::concat("and ", more, " more"));
  if (run.closed > 0) found.left.push_back(detail::concat(run.closed, " partitions wait for memory"));
  return found;
}

void TaskManager::end(std::uint32_t instance) {
  std::erase_if(to_run_, [&](const action::Run::Task& one) { return one.instance == instance; });
  std::vector<Waiting>& waiting = runs_[instance].waiting;
  for (const Waiting& message : waiting) out_.emit(action::Drop{message.message_id});
  waiting.clear();
}

}  // namespace casync
