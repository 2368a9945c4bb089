// Co-located parameter server (paper: figure 1a, section 3.1). Every member is a worker; partition p is owned by one of
// them.
//
//   step 1  each worker sends its contribution to p to the owner (windowed: it lands in the owner's memory)
//   step 2  the owner merges all contributions in member order, its own unencoded, takes the mean, and encodes again
//   step 3  the owner sends the result to every worker, and all, the owner included, decode the same bytes
//
// hops 2; bytes per direction 2(N-1)/N of the encoded gradient when K is a multiple of N; messages of a member
// 2K(N-1)/N. With `none` nothing is encoded: contributions leave from the gradient itself and results arrive in it.
//
// A codec of several `reduce` rounds repeats the three steps per round, merging payloads; the owner encodes its own
// contribution too, because what is merged are payloads.
#include "topology/topologies.hpp"

namespace casync {
namespace {

struct Tags {
  std::uint32_t push, pull;
};

Tags tags_of(const WorkflowBuilder& builder, std::uint32_t partition, int round) {
  const std::uint32_t base = 2 * (static_cast<std::uint32_t>(round) * builder.partitions() + partition);
  return {base, base + 1};
}

void worker_uncompressed(WorkflowBuilder& builder, std::uint32_t p) {
  const auto [push, pull] = tags_of(builder, p, 0);
  builder.send(p, builder.owner(p), push, WorkflowBuilder::input(), true);
  builder.recv(p, builder.owner(p), pull, WorkflowBuilder::output());
}

void worker(WorkflowBuilder& builder, std::uint32_t p) {
  const auto [push, pull] = tags_of(builder, p, 0);
  const Buffer mine = builder.payload_slot(p);
  const Buffer result = builder.payload_slot(p);
  const Buffer gradient[] = {WorkflowBuilder::input()};
  builder.compute(Primitive::encode, p, gradient, {.feedback = true, .encode_to = mine});
  builder.send(p, builder.owner(p), push, mine, true);
  builder.recv(p, builder.owner(p), pull, result);
  const Buffer received[] = {result};
  builder.compute(Primitive::decode, p, received, {.deliver = true, .write_to = WorkflowBuilder::output()});
}

void owner(WorkflowBuilder& builder, std::uint32_t p) {
  const auto [push, pull] = tags_of(builder, p, 0);
  const std::uint32_t self = builder.request().member;
  std::vector<Buffer> contributions;
  for (std::uint32_t m = 0; m < builder.members(); ++m) {
    contributions.push_back(m == self ? WorkflowBuilder::input() : builder.payload_slot(p));
    if (m != self) builder.recv(p, m, push, contributions.back(), true);
  }
  ComputeOptions options{.role = Role::owner, .feedback = true, .final = true, .deliver = true};
  options.write_to = WorkflowBuilder::output();
  if (!builder.identity()) options.encode_to = builder.payload_slot(p);
  builder.compute(Primitive::merge, p, contributions, options);
  const Buffer result = builder.identity() ? WorkflowBuilder::output() : options.encode_to;
  for (std::uint32_t step = 1; step < builder.members(); ++step) {
    builder.send(p, (self + step) % builder.members(), pull, result);
  }
}

void rounds_of(WorkflowBuilder& builder, std::uint32_t p) {
  const std::uint32_t self = builder.request().member;
  const std::uint32_t owner = builder.owner(p);
  const auto rounds = static_cast<int>(builder.request().codec->info().rounds.size());
  Buffer previous;
  for (int round = 0; round < rounds; ++round) {
    const auto [push, pull] = tags_of(builder, p, round);
    const auto number = static_cast<std::uint8_t>(round);
    const Buffer mine = builder.payload_slot(p, round);
    const Buffer result = builder.payload_slot(p, round);
    const Buffer gradient[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::encode, p, gradient,
                    {.round = number, .feedback = true, .encode_to = mine, .previous = previous});
    if (self == owner) {
      std::vector<Buffer> payloads;
      for (std::uint32_t m = 0; m < builder.members(); ++m) {
        payloads.push_back(m == self ? mine : builder.payload_slot(p, round));
        if (m != self) builder.recv(p, m, push, payloads.back(), true);
      }
      builder.compute(Primitive::merge, p, payloads,
                      {.role = Role::owner, .round = number, .encode_to = result, .previous = previous});
      for (std::uint32_t step = 1; step < builder.members(); ++step) {
        builder.send(p, (self + step) % builder.members(), pull, result);
      }
    } else {
      builder.send(p, owner, push, mine, true);
      builder.recv(p, owner, pull, result);
    }
    if (round + 1 == rounds) {
      const Buffer received[] = {result};
      builder.compute(Primitive::decode, p, received,
                      {.round = number,
                       .final = true,
                       .deliver = true,
                       .write_to = WorkflowBuilder::output(),
                       .previous = previous});
    }
    previous = result;
  }
}

}  // namespace

void parameter_server(WorkflowBuilder& builder) {
  const bool several_rounds = builder.request().codec->info().rounds.size() > 1;
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    if (several_rounds) {
      rounds_of(builder, p);
    } else if (builder.owner(p) == builder.request().member) {
      owner(builder, p);
    } else if (builder.identity()) {
      worker_uncompressed(builder, p);
    } else {
      worker(builder, p);
    }
  }
}

}  // namespace casync
