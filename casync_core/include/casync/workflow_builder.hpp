#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "casync/workflow.hpp"

namespace casync {

/// What a compute task does besides reading its sources.
struct ComputeOptions {
  Role role = Role::worker;
  std::uint8_t round = 0;
  bool feedback = false;
  bool final = false;
  bool deliver = false;
  bool settles = false;
  bool again = false;
  bool holds_back = false;
  bool uncoded = false;  ///< sources and what is written are raw: computed as if the plan had no codec
  bool held = false;     ///< it is not sent: it joins the residual
  Buffer encode_to{};
  Buffer write_to{};
  Buffer previous{};
  Range elements{};  ///< of a payload, where a part of it is read or written
};

/// At most `count` partitions of about one size, which end where the codec may be cut.
std::vector<Range> cut_evenly(const Codec& codec, const Shape& gradient, std::uint32_t count);

/// Collects the tasks of one member's workflow. Dependencies are derived from the buffers, never stated by hand: a task
/// that reads a buffer follows the one that wrote it, and a task that writes a buffer follows all who read it before.
/// `input` and `output` of a partition count as one buffer, because a user may pass the same memory for both; not so of
/// an alltoall, whose output is the runtime's. What is computed after values were settled follows from that, in all
/// partitions.
///
/// Since a task can depend only on tasks added before it, a finished workflow has no cycle; finish() checks the rest of
/// the contract: slots are written before they are read, and no two messages between two members share a tag and
/// direction.
class WorkflowBuilder {
 public:
  explicit WorkflowBuilder(const WorkflowRequest& request);

  const WorkflowRequest& request() const { return request_; }
  std::uint32_t members() const { return static_cast<std::uint32_t>(request_.host_of.size()); }
  std::uint32_t partitions() const { return static_cast<std::uint32_t>(workflow_.partitions.size()); }
  /// Those that go in this step, for which a route lays out tasks: neighbours, and all of them but in some plans.
  std::vector<std::uint32_t> sent() const;
  bool identity() const { return request_.codec->info().identity; }
  /// Where a partition stands in the turn of the route's owners; 0 where it has none.
  std::uint32_t position(std::uint32_t partition) const;
  /// The member that owns a partition; 0 where nobody does.
  Rank owner(std::uint32_t partition) const { return owners_.empty() ? 0 : owners_[position(partition)]; }

  /// How many contributions are merged, where members add some of theirs up before they encode.
  void set_contributions(std::uint32_t contributions) { workflow_.contributions = contributions; }

  /// Replaces the even cut into partitions, of which each member has equally many.
  void set_partitions(std::vector<Range> partitions, std::vector<Layout> layout);

  static Buffer input() { return {BufferKind::input, 0}; }
  static Buffer output() { return {BufferKind::output, 0}; }
  Buffer payload_slot(std::uint32_t partition, int round = 0);
  Buffer raw_slot(std::uint32_t partition);
  /// For the values that the codec settles.
  Buffer values_slot(std::uint32_t partition);

  /// For elements of which those that are zero are left out.
  Buffer nonzeros_slot(std::uint32_t partition);
  /// For some elements of a payload that merges.
  Buffer part_slot(std::uint32_t partition, int round, std::int64_t elements);
  /// How many elements a payload that merges has.
  std::int64_t elements_of(Buffer payload) const;
  /// Whether it has elements of the gradient's dtype.
  bool is_raw(Buffer buffer) const { return buffer.kind != BufferKind::slot || workflow_.slots[buffer.slot].raw; }
  /// Upper limit of a slot's bytes.
  std::size_t slot_bytes(Buffer slot) const { return workflow_.slots[slot.slot].bytes; }

  void compute(Primitive primitive, std::uint32_t partition, std::span<const Buffer> sources,
               const ComputeOptions& options);
  void send(std::uint32_t partition, std::uint32_t peer, std::uint32_t tag, Buffer from, bool needs_credit = false);
  void recv(std::uint32_t partition, std::uint32_t peer, std::uint32_t tag, Buffer into, bool needs_credit = false,
            bool combined = false);

  Workflow finish();

 private:
  struct Access {
    std::int64_t writer = -1;
    std::vector<std::uint32_t> readers;
  };
  Access& access(std::uint32_t partition, Buffer buffer);
  std::size_t raw_bytes(std::uint32_t partition) const;
  std::size_t element_bytes(int round) const;
  Buffer add_slot(Slot slot);
  void add(Task task, std::span<const std::pair<Buffer, bool>> accesses);

  WorkflowRequest request_;
  std::vector<Rank> owners_;
  Workflow workflow_;
  std::vector<Access> user_;                           // per partition
  std::vector<Access> result_;                         // per partition: output where it is not the user's memory
  std::vector<Access> slots_;                          // per slot
  std::vector<std::vector<std::uint32_t>> followers_;  // per task
  std::int64_t settled_ = -1;                          // the task since which the codec has its values
};

}  // namespace casync
