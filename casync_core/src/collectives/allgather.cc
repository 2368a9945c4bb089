// Allgather: every member sends its rows to every other; partition m of the output is what member m gave. Counts may
// differ and be 0. hops 1; bytes per direction N-1 times a member's own rows; messages of a member N-1.
#include "collectives/collectives.hpp"

namespace casync {

void allgather(WorkflowBuilder& builder) {
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  std::vector<Range> ranges;
  std::vector<Layout> layout;
  std::int64_t begin = 0;
  for (const std::int64_t count : builder.request().counts) {
    const bool mine = ranges.size() == self;
    ranges.push_back({begin, begin + count});
    layout.push_back({{0, mine ? count : 0}, ranges.back(), builder.request().shape, 0});
    begin += count;
  }
  const bool empty_input = ranges[self].size() == 0;
  builder.set_partitions(ranges, std::move(layout));
  for (std::uint32_t step = 1; step < n; ++step) {
    const std::uint32_t from = (self + n - step) % n;
    if (!empty_input) builder.send(self, (self + step) % n, self, WorkflowBuilder::input(), true);
    if (ranges[from].size() > 0) builder.recv(from, from, from, WorkflowBuilder::output(), true);
  }
  if (!empty_input) {
    const Buffer sources[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::merge, self, sources, {.write_to = WorkflowBuilder::output()});
  }
}

}  // namespace casync
