#pragma once

#include "casync/workflow_builder.hpp"

/// One function per collective; each file explains its steps before its code. All lay out the part of one member.
namespace casync {

void broadcast(WorkflowBuilder& builder);
void allgather(WorkflowBuilder& builder);
void reducescatter(WorkflowBuilder& builder);
void alltoall(WorkflowBuilder& builder);
/// Along the route of the request; see casync/route.hpp.
void allreduce(WorkflowBuilder& builder);

/// The part of a gradient of `shape` that a reducescatter among `members` leaves with one of them: its share of the
/// rows, as a range of elements. The first rows % N members have one row more.
Range scattered_to(std::uint32_t member, std::uint32_t members, const Shape& shape);

/// Throws InvalidArgument for a codec that a reducescatter does not carry.
void check_scatters(const Codec& codec, const Shape& shape);

}  // namespace casync
