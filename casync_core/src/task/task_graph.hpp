#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "casync/plan.hpp"
#include "casync/workflow.hpp"

namespace casync {

/// A workflow with what running it needs, built once per plan: tables that turn every per-step question into an index.
struct TaskGraph {
  explicit TaskGraph(const WorkflowRequest& request);

  Workflow workflow;
  std::shared_ptr<const Codec> codec;                        ///< keeps alive what the executor computes with
  std::shared_ptr<const Codec> nonzeros, parts, none, hold;  ///< likewise, for other forms
  Shape shape;                                               ///< as WorkflowRequest has it
  DType dtype = DType::float32;
  std::vector<std::int64_t> rows;  ///< allgather, alltoall: what each member gives to this one
  std::uint32_t turn = 0;          ///< which part of the gradient goes
  Range sent;                      ///< elements that go; what else there is joins the residual
  Coefficient coefficient{};       ///< of what waits
  bool counts = false;             ///< its steps are counted, even if its codec keeps nothing
  bool provisional = false;        ///< another codec follows at a step that is known, and finds what is kept as it is
  std::vector<std::uint32_t> first_dependencies;  ///< per task: its dependencies, plus one for the partition's memory
  std::vector<std::uint32_t> tasks_of_partition;  ///< per partition: how many tasks
  std::vector<std::vector<std::uint32_t>> members_of;    ///< per partition: tasks, in order
  std::vector<std::vector<std::uint16_t>> slots_of;      ///< per partition: its slots
  std::vector<std::vector<std::uint32_t>> credit_peers;  ///< per partition: members that wait for credit of ours
  std::vector<std::uint32_t> delivery;  ///< per partition: the last task that writes the output; where this rank has
                                        ///< none of it, the task that sends its contribution
  bool sends_nonzeros = false;          ///< some slot has them
  std::size_t largest_message = 0;      ///< bytes, over all sends and receives
  std::size_t smallest_message = ~std::size_t{0};  ///< likewise; of a codec that chooses the length, of the limits
  bool host_only = false;                          ///< some task is one that no device computes
  bool sends_slots_only = true;  ///< no message is the program's memory, so that may be where no network reaches

  /// Index of the receive that `tag` from member `peer` names, or -1.
  std::int64_t find_recv(std::uint32_t peer, std::uint32_t tag) const;
  /// The receive that brought source `source` of a compute task; null: it was made here.
  const Task* receive_of(const Task& task, std::size_t source) const;
  /// The member that sent it, or -1.
  std::int64_t sender_of(const Task& task, std::size_t source) const;
  /// Whether some elements are not sent in this step.
  bool holds() const { return sent.size() < shape.numel(); }
  /// From 0 to 1: the part of the elements that is sent.
  double part_sent() const {
    return holds() ? static_cast<double>(sent.size()) / static_cast<double>(shape.numel()) : 1.0;
  }
  /// Whether `buffer` holds elements of the gradient's dtype; otherwise it is a payload.
  bool raw(Buffer buffer) const { return buffer.kind != BufferKind::slot || workflow.slots[buffer.slot].raw; }
  /// What computes a task.
  const Codec& codec_of(const Task& task) const {
    switch (task.form) {
      case Form::payload:
        return *codec;
      case Form::nonzeros:
        return *nonzeros;
      case Form::part:
        return *parts;
      case Form::elements:
        return *none;
      case Form::held:
        return *hold;
    }
    return *codec;
  }
  /// Whether what is sent from `buffer` is as long as it can be.
  bool fills(Buffer buffer) const {
    if (raw(buffer)) return true;
    return workflow.slots[buffer.slot].form != Form::nonzeros && codec->info().fixed_size;
  }
  /// Whether payloads may be shorter than their slots.
  bool codec_chooses_length() const { return sends_nonzeros || (codec != nullptr && !codec->info().fixed_size); }
  /// Bytes of gradient that a compute task touches.
  std::size_t weight(const Task& task) const;
  /// Upper limit of a message's bytes.
  std::size_t message_bytes(const Task& task) const;

 private:
  struct Key {
    std::uint64_t key;
    std::uint32_t task;
  };
  bool adds_to_pending(const CodecInfo& info, const Task& task) const;
  std::vector<Key> receives_;  // sorted
};

}  // namespace casync
