#include "routes/flat.hpp"

namespace casync {

PartitionBuilder::PartitionBuilder(WorkflowBuilder& builder, std::uint32_t partition, std::vector<Member> members,
                                   std::uint32_t owner, std::vector<Buffer> local_contributions)
    : builder_(builder),
      partition_(partition),
      members_(std::move(members)),
      owner_(owner),
      local_contributions_(std::move(local_contributions)) {
  while (members_[self_].rank != builder.request().member) ++self_;
}

Buffer PartitionBuilder::payload_slot(std::uint32_t round) {
  return builder_.payload_slot(partition_, static_cast<int>(round));
}

Buffer PartitionBuilder::part_slot(std::uint32_t round, const Range& elements) {
  return builder_.part_slot(partition_, static_cast<int>(round), elements.size());
}

void PartitionBuilder::compute(Primitive primitive, const std::vector<Buffer>& sources, const ComputeOptions& options) {
  builder_.compute(primitive, partition_, sources, options);
}

Buffer PartitionBuilder::contribution(std::uint32_t round, Buffer previous) {
  ComputeOptions options{.round = static_cast<std::uint8_t>(round), .feedback = true, .previous = previous};
  if (identity()) {
    if (local_contributions_.size() == 1) return local_contributions_.front();
    options.write_to = WorkflowBuilder::output();
    compute(Primitive::merge, local_contributions_, options);
    return options.write_to;
  }
  options.encode_to = payload_slot(round);
  compute(local_contributions_.size() == 1 ? Primitive::encode : Primitive::merge, local_contributions_, options);
  return options.encode_to;
}

void PartitionBuilder::send(std::uint32_t to, std::uint32_t way, Buffer from, bool needs_credit, std::uint32_t round) {
  builder_.send(partition_, members_[to].rank, tag_of(builder_, partition_, way, round), from, needs_credit);
}

void PartitionBuilder::recv(std::uint32_t from, std::uint32_t way, Buffer into, bool needs_credit, std::uint32_t round,
                            bool combined) {
  builder_.recv(partition_, members_[from].rank, tag_of(builder_, partition_, way, round), into, needs_credit,
                combined);
}

void PartitionBuilder::deliver(const std::vector<Buffer>& payloads) {
  if (!identity()) casync::deliver(builder_, partition_, payloads);
}

std::uint32_t tag_of(const WorkflowBuilder& builder, std::uint32_t partition, std::uint32_t way, std::uint32_t round) {
  return 2 * (round * builder.partitions() + partition) + way;
}

/// Who encodes again takes the mean before; factors of several rounds and gathered payloads go on as sums.
void deliver(WorkflowBuilder& builder, std::uint32_t partition, const std::vector<Buffer>& payloads) {
  const auto last = static_cast<std::uint8_t>(payloads.size() - 1);
  const bool sums = last > 0 || gathers(builder.request().codec->info());
  ComputeOptions options{.round = last, .final = sums, .deliver = true, .write_to = WorkflowBuilder::output()};
  if (last > 0) options.previous = payloads[last - 1];
  const Buffer received[] = {payloads[last]};
  builder.compute(Primitive::decode, partition, received, options);
}

std::vector<Phase> FlatRoute::phases() const {
  std::vector<Phase> phases;
  for (const Routine routine : routines()) phases.push_back({Scope::flat, routine});
  return phases;
}

void FlatRoute::build(WorkflowBuilder& builder) const {
  std::vector<PartitionBuilder::Member> members;
  for (Rank rank = 0; rank < builder.members(); ++rank) members.push_back({rank, false});
  for (const std::uint32_t p : builder.sent()) {
    PartitionBuilder partition(builder, p, members, builder.owner(p), {WorkflowBuilder::input()});
    build_partition(partition);
  }
}

}  // namespace casync
