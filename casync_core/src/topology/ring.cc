// Ring (paper: figure 1b). Partition p starts at the successor of its owner and travels the ring twice.
//
//   reduce phase     N-1 hops: a member adds its own contribution to what its predecessor sent and passes the sum on;
//                    the last hop ends at the owner, which takes the mean
//   broadcast phase  N-1 hops: the result is passed on unchanged, and every member decodes the same bytes
//
// Order of addition: owner+1, owner+2, ..., owner, so it depends on the partition (PS adds in member order instead).
// hops 2(N-1); bytes per direction 2(N-1)/N of the encoded gradient when K is a multiple of N; messages of a member
// 2K(N-1)/N. With a codec the sum is encoded again at every hop: exact for none, one rounding per hop for 16-bit
// floats, lossy at every hop for `reencode` codecs, which therefore take a ring only on request. A member encodes each
// partition once, so one residual suffices.
#include "topology/topologies.hpp"

namespace casync {

void ring(WorkflowBuilder& builder) {
  const std::uint32_t n = builder.members();
  const std::uint32_t self = builder.request().member;
  const std::uint32_t next = (self + 1) % n;
  const std::uint32_t before = (self + n - 1) % n;
  const bool identity = builder.identity();
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    const std::uint32_t owner = builder.owner(p);
    const std::uint32_t hop = (self + n - owner - 1) % n;  // 0 at the starter, n-1 at the owner
    const std::uint32_t reduce_tag = 2 * p;
    const std::uint32_t broadcast_tag = 2 * p + 1;
    Buffer carried = identity ? WorkflowBuilder::output() : builder.payload_slot(p);

    // Reduce phase.
    ComputeOptions options{.role = hop == 0 ? Role::worker : Role::owner, .feedback = true};
    if (!identity) options.encode_to = carried;
    if (hop == 0) {
      const Buffer gradient[] = {WorkflowBuilder::input()};
      if (!identity) builder.compute(Primitive::encode, p, gradient, options);
      if (identity) carried = WorkflowBuilder::input();
    } else {
      const Buffer partial = builder.payload_slot(p);
      builder.recv(p, before, reduce_tag, partial, true, hop > 1);
      const Buffer contributions[] = {partial, WorkflowBuilder::input()};
      options.final = options.deliver = hop == n - 1;
      if (identity || options.deliver) options.write_to = WorkflowBuilder::output();
      builder.compute(Primitive::merge, p, contributions, options);
    }
    if (hop < n - 1) builder.send(p, next, reduce_tag, carried, true);

    // Broadcast phase.
    if (hop < n - 1) {
      const Buffer result = identity ? WorkflowBuilder::output() : builder.payload_slot(p);
      builder.recv(p, before, broadcast_tag, result);
      if (!identity) {
        const Buffer received[] = {result};
        builder.compute(Primitive::decode, p, received, {.deliver = true, .write_to = WorkflowBuilder::output()});
      }
      carried = result;
    }
    if (next != owner) builder.send(p, next, broadcast_tag, carried);
  }
}

}  // namespace casync
