#include "collectives/collectives.hpp"

namespace casync {

Workflow build_workflow(const WorkflowRequest& request) {
  WorkflowBuilder builder(request);
  switch (request.kind) {
    case OpKind::allreduce:
      allreduce(builder);
      break;
    case OpKind::broadcast:
      broadcast(builder);
      break;
    case OpKind::allgather:
      allgather(builder);
      break;
    case OpKind::alltoall:
      alltoall(builder);
      break;
    case OpKind::reducescatter:
      check_scatters(*request.codec, request.shape);
      reducescatter(builder);
      break;
    case OpKind::barrier:
    case OpKind::join:
      break;
  }
  return builder.finish();
}

}  // namespace casync
