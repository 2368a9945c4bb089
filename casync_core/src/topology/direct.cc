// Direct exchange: every member sends its contribution to every other, and all add them in member order.
//
// hops 1; bytes per direction N-1 times the encoded gradient; messages of a member K(N-1). The least latency there is,
// so small operations take it; and the only route of `gather` codecs, whose payloads must reach everybody and are never
// encoded again. With a codec a member's own contribution is its payload too, so all add the same bytes.
#include "topology/topologies.hpp"

namespace casync {

void direct(WorkflowBuilder& builder) {
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  const auto rounds = static_cast<int>(builder.request().codec->info().rounds.size());
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    Buffer previous;
    for (int round = 0; round < rounds; ++round) {
      const auto number = static_cast<std::uint8_t>(round);
      const std::uint32_t tag = static_cast<std::uint32_t>(round) * builder.partitions() + p;
      Buffer mine = WorkflowBuilder::input();
      if (!builder.identity()) {
        mine = builder.payload_slot(p, round);
        const Buffer gradient[] = {WorkflowBuilder::input()};
        builder.compute(Primitive::encode, p, gradient,
                        {.round = number, .feedback = true, .encode_to = mine, .previous = previous});
      }
      for (std::uint32_t step = 1; step < n; ++step) builder.send(p, (self + step) % n, tag, mine, true);
      std::vector<Buffer> contributions;
      for (std::uint32_t m = 0; m < n; ++m) {
        contributions.push_back(m == self ? mine : builder.payload_slot(p, round));
        if (m != self) builder.recv(p, m, tag, contributions.back(), true);
      }
      if (round + 1 == rounds) {
        builder.compute(Primitive::merge, p, contributions,
                        {.round = number,
                         .final = true,
                         .deliver = true,
                         .write_to = WorkflowBuilder::output(),
                         .previous = previous});
      } else {
        const Buffer result = builder.payload_slot(p, round);
        builder.compute(Primitive::merge, p, contributions,
                        {.role = Role::owner, .round = number, .encode_to = result, .previous = previous});
        previous = result;
      }
    }
  }
}

}  // namespace casync
