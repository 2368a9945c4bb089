#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "casync/route.hpp"
#include "casync/types.hpp"

/// The workflow of one gradient on one rank: a graph of the five primitives (paper: section 3.1) over partitions.
///
/// A workflow is a template: built once per plan and rank, cached, and run once per step with a counter per task. It
/// holds no pointers; buffers are named by what they are.
namespace casync {

enum class Primitive : std::uint8_t { encode, decode, merge, send, recv };

inline constexpr std::array<std::string_view, 5> kPrimitiveName{"encode", "decode", "merge", "send", "recv"};
constexpr std::string_view name_of(Primitive primitive) { return kPrimitiveName[static_cast<std::size_t>(primitive)]; }

/// Memory a task reads or writes, always over the task's partition.
enum class BufferKind : std::uint8_t {
  none,
  input,   ///< the user's gradient
  output,  ///< the user's result; may be the same memory as input
  slot,    ///< memory of the runtime: a payload, or raw elements, of one partition
};

struct Buffer {
  BufferKind kind = BufferKind::none;
  std::uint16_t slot = 0;
  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// What a slot holds, and so what computes with it.
enum class Form : std::uint8_t {
  payload,   ///< of the plan's codec; or raw elements, or settled values
  nonzeros,  ///< elements of the gradient's dtype without those that are zero: the codec `nonzeros`
  part,      ///< some elements of a payload that merges: the codec `parts`
  elements,  ///< elements of the gradient's dtype, as if the plan had no codec: the codec `none`
  held,      ///< of tasks alone: elements of the gradient that are not sent: the codec `hold`
};

/// Runtime memory a workflow needs, reserved per partition before its first task runs.
struct Slot {
  std::uint32_t partition = 0;
  std::uint8_t round = 0;
  bool raw = false;  ///< elements of the gradient's dtype, or settled values; otherwise a payload of the plan's codec
  std::size_t bytes = 0;  ///< upper limit
  Form form = Form::payload;
};

struct Task {
  Primitive primitive = Primitive::encode;
  Role role = Role::worker;
  std::uint8_t round = 0;
  bool feedback = false;    ///< compute: takes from the gradient what it does not send, into the residual or the
                            ///< codec's own state
  bool final = false;       ///< compute: the accumulated value is complete, so the mean's factor applies
  bool settles = false;     ///< compute: an encode asks for this rank's part of the values that the codec settles with
                            ///< the other ranks (Codec::propose), a merge takes their mean (Codec::agree)
  bool deliver = false;     ///< compute: writes the user's result, so the post factor applies
  bool again = false;       ///< compute: encodes or decodes what is a result already, so that no factor applies
  bool holds_back = false;  ///< compute, again: what encoding loses joins the residual
  bool needs_credit = false;  ///< send, recv: may come only when the receiver has opened the partition
  bool combined = false;      ///< recv: brings a sum that its sender has computed, not the sender's contribution alone
  std::uint32_t partition = 0;
  std::uint32_t peer = 0;          ///< send, recv: member index
  std::uint32_t tag = 0;           ///< send, recv: names the message among all of this workflow between the two members
  Buffer data;                     ///< send: from; recv: into
  Buffer encode_to;                ///< compute: slot for the payload, or none
  Buffer write_to;                 ///< compute: output for raw elements, of a part a slot, or none
  Buffer previous;                 ///< compute: slot with the aggregated payload of the round before, or none
  std::uint32_t first_source = 0;  ///< compute: into Workflow::sources, in the order of accumulation
  std::uint32_t source_count = 0;
  Form form = Form::payload;          ///< compute: by which codec
  Range elements;                     ///< compute: of a payload, what is merged in parts
  std::uint32_t dependencies = 0;     ///< tasks that must be done before this one
  std::uint32_t first_successor = 0;  ///< into Workflow::successors
  std::uint32_t successor_count = 0;
};

/// Whether it is a task of a codec, and not of the transport.
constexpr bool computes(const Task& task) { return task.primitive <= Primitive::merge; }

/// Where the elements of a partition lie. Of what is of no use on this rank the range is empty.
struct Layout {
  Range input;     ///< in the user's input
  Range output;    ///< in the user's result
  Shape gradient;  ///< what codecs take for the gradient; of a reducescatter, the rows that go to one rank
  std::int64_t gradient_begin = 0;  ///< its first element, as partitions count them
};

struct Workflow {
  std::vector<Range> partitions;  ///< elements of the gradient; of an allgather and an alltoall, of the output
  std::vector<Layout> layout;     ///< per partition
  std::vector<Task> tasks;        ///< in a topological order
  std::vector<Buffer> sources;
  std::vector<std::uint32_t> successors;  ///< task indices
  std::vector<Slot> slots;
  std::vector<std::size_t> reserve;  ///< per partition: bytes of its slots on this rank
  std::uint32_t contributions = 0;   ///< that are encoded apart and then merged: one of each member, or of each host

  /// The partition as codecs see it: elements of Layout::gradient.
  Range coded(std::uint32_t partition) const {
    const std::int64_t first = layout[partition].gradient_begin;
    return {partitions[partition].begin - first, partitions[partition].end - first};
  }
};

/// Everything a route needs to know to lay out one member's part.
struct WorkflowRequest {
  OpKind kind = OpKind::allreduce;
  Shape shape;  ///< of the gradient; of an allgather and an alltoall, of the output
  DType dtype = DType::float32;
  const Codec* codec = nullptr;
  ReduceOp op = ReduceOp::sum;   ///< says only whether a part of the gradient can be reduced without the rest
  const Route* route = nullptr;  ///< allreduce
  std::uint32_t partitions = 1;
  std::uint32_t first_owner = 0;
  bool settles = false;                ///< the codec's values are settled first (Codec::agreed)
  std::uint32_t period = 1;            ///< allreduce: the partitions go in so many turns (partitions_of)
  std::uint32_t turn = 0;              ///< those of this turn go, and the others join the residual
  std::uint32_t member = 0;            ///< this rank's index
  std::uint32_t root = 0;              ///< broadcast
  std::vector<std::uint32_t> host_of;  ///< per member: host index; its size is N
  std::vector<std::int64_t> counts;    ///< allgather, alltoall: elements that each member gives to this one
  std::vector<std::int64_t> splits;    ///< alltoall: elements that this member gives to each
};

/// Builds and checks (acyclic, every buffer written before it is read). Throws InvalidArgument for a combination that
/// no route carries, naming it and the remedy.
Workflow build_workflow(const WorkflowRequest& request);

}  // namespace casync
