#include "casync/error.hpp"
#include "topology/topologies.hpp"

namespace casync {

void solo(WorkflowBuilder& builder) {
  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    const Buffer sources[] = {WorkflowBuilder::input()};
    builder.compute(Primitive::merge, p, sources,
                    {.final = true, .deliver = true, .write_to = WorkflowBuilder::output()});
  }
}

namespace {

void check_codec(const WorkflowRequest& request) {
  const CodecInfo& info = request.codec->info();
  if (info.whole && request.partitions > 1) {
    throw InvalidArgument(detail::concat("codec ", info.spec, " encodes a whole gradient and cannot be cut into ",
                                         request.partitions, " partitions; plan it with partitions=1"));
  }
  const bool gathers = info.rounds.front() == Aggregation::gather;
  if (gathers && request.topology != Topology::direct) {
    throw InvalidArgument(detail::concat("codec ", info.spec, " gathers payloads, which topology ",
                                         name_of(request.topology), " does not carry; use topology \"direct\""));
  }
  const bool at_once = request.topology == Topology::direct || request.topology == Topology::parameter_server;
  if (info.averages && !at_once) {
    throw InvalidArgument(detail::concat("codec ", info.spec, " averages the payloads of all ranks at once, which ",
                                         "topology ", name_of(request.topology),
                                         " does not carry; use topology \"ps\""));
  }
  if (info.rounds.size() > 1 && !at_once) {
    throw InvalidArgument(detail::concat("codec ", info.spec, " has ", info.rounds.size(), " rounds, which topology ",
                                         name_of(request.topology), " does not carry; use topology \"ps\""));
  }
  if (request.op == ReduceOp::adasum && (!at_once || request.partitions > 1)) {
    throw InvalidArgument(detail::concat("op Adasum takes the whole gradient of all ranks at one place, which ",
                                         request.partitions, " partitions over topology ", name_of(request.topology),
                                         " do not; plan it with topology \"ps\" and partitions=1"));
  }
}

}  // namespace

Workflow build_workflow(const WorkflowRequest& request) {
  WorkflowBuilder builder(request);
  if (request.kind == OpKind::broadcast) {
    broadcast(builder);
  } else if (request.kind == OpKind::allgather) {
    allgather(builder);
  } else if (request.kind == OpKind::alltoall) {
    alltoall(builder);
  } else if (request.kind == OpKind::reducescatter) {
    check_scatters(*request.codec, request.shape);
    reducescatter(builder);
  } else if (request.kind == OpKind::allreduce) {
    if (builder.members() == 1) {
      solo(builder);
      return builder.finish();
    }
    check_codec(request);
    if (request.settles) settle(builder);
    switch (request.topology) {
      case Topology::direct:
        direct(builder);
        break;
      case Topology::parameter_server:
        parameter_server(builder);
        break;
      case Topology::ring:
        ring(builder);
        break;
      case Topology::two_level:
        two_level(builder);
        break;
    }
  }
  return builder.finish();
}

}  // namespace casync
