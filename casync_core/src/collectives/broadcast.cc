// Broadcast along a chain: root, root+1, ..., each member passes a partition on as soon as it has it, so with K
// partitions all links work at once. A send waits until the next member has opened the partition: a body that nobody
// takes would hold back all others of the link. hops N-1; bytes per direction 1 times the tensor; messages of a member
// K.
#include "collectives/collectives.hpp"

namespace casync {

void broadcast(WorkflowBuilder& builder) {
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  const std::uint32_t root = builder.request().root;
  const std::uint32_t place = (self + n - root) % n;
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    if (place > 0) builder.recv(p, (self + n - 1) % n, p, WorkflowBuilder::output(), true);
    const Buffer from = place == 0 ? WorkflowBuilder::input() : WorkflowBuilder::output();
    if (place + 1 < n) builder.send(p, (self + 1) % n, p, from, true);
    if (place == 0) {
      const Buffer sources[] = {WorkflowBuilder::input()};
      builder.compute(Primitive::merge, p, sources, {.write_to = WorkflowBuilder::output()});
    }
  }
}

}  // namespace casync
