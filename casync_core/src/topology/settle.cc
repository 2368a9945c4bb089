// What comes before a gradient's first encode where its codec has values to settle (Codec::agreed): every member sends
// its proposal to every other, and all take the mean in member order. Everything computed later follows, in all
// partitions; the values travel with the first of them.
//
// hops 1; a few bytes; messages of a member N-1.
#include "topology/topologies.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kTag = 0xffffffffU;  // which no topology counts up to

}  // namespace

void settle(WorkflowBuilder& builder) {
  if (builder.partitions() == 0) return;
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  const Buffer gradient[] = {WorkflowBuilder::input()};
  const Buffer mine = builder.values_slot(0);
  builder.compute(Primitive::encode, 0, gradient, {.settles = true, .encode_to = mine});
  for (std::uint32_t step = 1; step < n; ++step) builder.send(0, (self + step) % n, kTag, mine, true);
  std::vector<Buffer> proposals;
  for (std::uint32_t m = 0; m < n; ++m) {
    proposals.push_back(m == self ? mine : builder.values_slot(0));
    if (m != self) builder.recv(0, m, kTag, proposals.back(), true);
  }
  builder.compute(Primitive::merge, 0, proposals, {.settles = true});
}

}  // namespace casync
