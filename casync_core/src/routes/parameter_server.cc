// Co-located parameter server (paper: figure 1a, section 3.1). Every member is a worker; partition p is owned by one of
// them.
//
//   step 1  each worker sends its contribution to p to the owner (on credit: it lands in the owner's memory)
//   step 2  the owner merges all contributions in member order, its own unencoded, takes the mean, and encodes again
//   step 3  the owner sends the result to every worker, and all, the owner included, decode the same bytes
//
// hops 2; bytes per direction 2(N-1)/N of the encoded gradient when K is a multiple of N; messages of a member
// 2K(N-1)/N. With `none` nothing is encoded: contributions leave from the gradient itself and results arrive in it.
//
// `gather` codecs are never encoded again. The owner merges the payloads into the mean, its own included, and sends
// that without the elements that are zero (the codec `nonzeros`): the union of what the payloads have, exactly.
//
// A codec of several `reduce` rounds repeats the three steps per round, merging payloads, and so does one that
// averages; the owner encodes its own contribution too, because what is merged are payloads.
#include "routes/flat.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kPush = 0;
constexpr std::uint32_t kPull = 1;

/// All contributions, in member order; `mine` are this member's own.
std::vector<Buffer> collect(PartitionBuilder& builder, const std::vector<Buffer>& mine, std::uint32_t round = 0) {
  std::vector<Buffer> contributions;
  for (std::uint32_t m = 0; m < builder.size(); ++m) {
    if (m == builder.self()) {
      contributions.insert(contributions.end(), mine.begin(), mine.end());
    } else {
      contributions.push_back(builder.payload_slot(round));
      builder.recv(m, kPush, contributions.back(), true, round, builder.sums(m));
    }
  }
  return contributions;
}

void return_to_all(PartitionBuilder& builder, Buffer result, std::uint32_t round = 0) {
  for (std::uint32_t step = 1; step < builder.size(); ++step)
    builder.send((builder.self() + step) % builder.size(), kPull, result, false, round);
}

std::vector<Buffer> worker(PartitionBuilder& builder) {
  builder.send(builder.owner(), kPush, builder.contribution(), true);
  const Buffer result = builder.identity() ? WorkflowBuilder::output() : builder.payload_slot();
  builder.recv(builder.owner(), kPull, result, false);
  builder.deliver({result});
  return {result};
}

std::vector<Buffer> owner(PartitionBuilder& builder) {
  ComputeOptions options{.role = Role::owner, .feedback = true, .final = true, .deliver = true};
  options.write_to = WorkflowBuilder::output();
  const std::vector<Buffer> contributions = collect(builder, builder.local_contributions());
  if (!builder.identity()) options.encode_to = builder.payload_slot();
  builder.compute(Primitive::merge, contributions, options);
  const Buffer result = builder.identity() ? options.write_to : options.encode_to;
  return_to_all(builder, result);
  return {result};
}

std::vector<Buffer> gathered(PartitionBuilder& builder) {
  const Buffer mine = builder.contribution();
  const Buffer merged = builder.nonzeros_slot();
  ComputeOptions options{.final = true, .deliver = true, .write_to = WorkflowBuilder::output()};
  if (builder.self() == builder.owner()) {
    builder.compute(Primitive::merge, collect(builder, {mine}), options);
    builder.compute(Primitive::encode, {options.write_to}, {.encode_to = merged});
    return_to_all(builder, merged);
  } else {
    builder.send(builder.owner(), kPush, mine, true);
    builder.recv(builder.owner(), kPull, merged, false);
    builder.compute(Primitive::decode, {merged}, options);
  }
  return {options.write_to};
}

std::vector<Buffer> in_rounds(PartitionBuilder& builder) {
  std::vector<Buffer> results;
  for (std::uint32_t round = 0; round < builder.rounds(); ++round) {
    const Buffer previous = round > 0 ? results.back() : Buffer{};
    const Buffer mine = builder.contribution(round, previous);
    const Buffer result = builder.payload_slot(round);
    if (builder.self() == builder.owner()) {
      builder.compute(
          Primitive::merge, collect(builder, {mine}, round),
          {.role = Role::owner, .round = static_cast<std::uint8_t>(round), .encode_to = result, .previous = previous});
      return_to_all(builder, result, round);
    } else {
      builder.send(builder.owner(), kPush, mine, true, round);
      builder.recv(builder.owner(), kPull, result, false, round);
    }
    results.push_back(result);
  }
  builder.deliver(results);
  return results;
}

class ParameterServer final : public FlatRoute {
 public:
  std::string_view name() const override { return "ps"; }
  std::vector<Routine> routines() const override { return {Routine::alltoall, Routine::allgather}; }
  std::optional<std::string> why_unsupported(const RouteRequest& /*request*/) const override { return std::nullopt; }
  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override { return everybody(host_of); }
  bool merges_at_once() const override { return true; }
  bool ends_encoded(const CodecInfo& codec) const override { return !codec.identity && !gathers(codec); }

  std::vector<Buffer> build_partition(PartitionBuilder& builder) const override {
    if (builder.gathers()) return gathered(builder);
    if (builder.merges_payloads()) return in_rounds(builder);
    return builder.self() == builder.owner() ? owner(builder) : worker(builder);
  }
};

}  // namespace

const FlatRoute& parameter_server_route() {
  static const ParameterServer route;
  return route;
}

}  // namespace casync
