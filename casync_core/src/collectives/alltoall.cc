// Alltoall: every member sends each other one its rows, and copies its own. Partition d is what goes to the member d
// places on and what comes from the member d places back, so a message is of one partition on both sides. Counts may
// differ and be 0.
//
// hops 1; bytes per direction what goes to others, or comes from them; messages of a member N-1 at most.
#include "collectives/collectives.hpp"

namespace casync {
namespace {

std::vector<Range> in_a_row(const std::vector<std::int64_t>& counts) {
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

}  // namespace

void alltoall(WorkflowBuilder& builder) {
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  const std::vector<Range> given = in_a_row(builder.request().splits);
  const std::vector<Range> received = in_a_row(builder.request().counts);
  std::vector<Range> partitions;
  std::vector<Layout> layout;
  for (std::uint32_t d = 0; d < n; ++d) {
    partitions.push_back(received[(self + n - d) % n]);
    layout.push_back({given[(self + d) % n], partitions.back(), builder.request().shape, 0});
  }
  builder.set_partitions(partitions, layout);
  for (std::uint32_t d = 1; d < n; ++d) {
    if (layout[d].input.size() > 0) builder.send(d, (self + d) % n, d, WorkflowBuilder::input(), true);
    if (layout[d].output.size() > 0) builder.recv(d, (self + n - d) % n, d, WorkflowBuilder::output(), true);
  }
  if (layout[0].output.size() > 0) {
    const Buffer sources[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::merge, 0, sources, {.write_to = WorkflowBuilder::output()});
  }
}

}  // namespace casync
