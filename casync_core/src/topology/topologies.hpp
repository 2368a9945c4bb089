#pragma once

#include "workflow/builder.hpp"

/// One function per route; each file explains its steps before its code. All lay out the part of one member.
namespace casync {

void parameter_server(WorkflowBuilder& builder);
void ring(WorkflowBuilder& builder);
void two_level(WorkflowBuilder& builder);
void direct(WorkflowBuilder& builder);
void broadcast(WorkflowBuilder& builder);
void allgather(WorkflowBuilder& builder);
void reducescatter(WorkflowBuilder& builder);
void alltoall(WorkflowBuilder& builder);
/// Comes before any of the others.
void settle(WorkflowBuilder& builder);

/// A world of one: what is delivered is the input (rule R9: N = 1 is the identity).
void solo(WorkflowBuilder& builder);

/// The part of a gradient of `shape` that a reducescatter among `members` leaves with one of them: its share of the
/// rows, as a range of elements. The first rows % N members have one row more.
Range scattered_to(std::uint32_t member, std::uint32_t members, const Shape& shape);

/// Throws InvalidArgument for a codec that a reducescatter does not carry.
void check_scatters(const Codec& codec, const Shape& shape);

}  // namespace casync
