// Allreduce: along the route of the plan (routes/), after what comes before a gradient's first encode.
//
// Where the gradient's codec has values to settle (Codec::agreed), every member sends its proposal to every other, and
// all take the mean in member order. Everything computed later follows, in all partitions; the values travel with the
// first of them. hops 1; a few bytes; messages of a member N-1.
//
// Of partitions whose turn it is not, every member keeps what it has, and sends nothing.
#include <algorithm>

#include "casync/error.hpp"
#include "collectives/collectives.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kTag = 0xffffffffU;  // which no route counts up to

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

/// A world of one: what is delivered is the input.
void solo(WorkflowBuilder& builder) {
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    const Buffer sources[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::merge, p, sources,
                    {.final = true, .deliver = true, .write_to = WorkflowBuilder::output()});
  }
}

/// Partitions whose turn it is not: the codec `hold` computes here alone.
void hold(WorkflowBuilder& builder, const std::vector<std::uint32_t>& sent) {
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    if (std::ranges::binary_search(sent, p)) continue;
    const Buffer sources[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::merge, p, sources,
                    {.deliver = true, .held = true, .write_to = WorkflowBuilder::output()});
  }
}

void check_partitions(const WorkflowRequest& request) {
  if (request.partitions == 1) return;
  if (request.codec->info().whole) {
    throw InvalidArgument(detail::concat("codec ", request.codec->info().spec,
                                         " encodes a whole gradient and cannot be cut into ", request.partitions,
                                         " partitions; plan it with partitions=1"));
  }
  if (request.op == ReduceOp::adasum) {
    throw InvalidArgument(detail::concat("op Adasum takes the whole gradient of all ranks at one place, which ",
                                         request.partitions, " partitions do not; plan it with partitions=1"));
  }
}

}  // namespace

void allreduce(WorkflowBuilder& builder) {
  const WorkflowRequest& request = builder.request();
  if (builder.members() == 1) {
    solo(builder);
    return;
  }
  CASYNC_CHECK(request.route != nullptr);
  check_partitions(request);
  check_supports(*request.route, {request.codec->info(), request.op, request.host_of});
  const std::vector<std::uint32_t> sent = builder.sent();
  if (request.settles && !sent.empty()) settle(builder);
  hold(builder, sent);
  request.route->build(builder);
}

}  // namespace casync
