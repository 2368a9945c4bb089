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
/// Comes before any of the others.
void settle(WorkflowBuilder& builder);

/// A world of one: what is delivered is the input (rule R9: N = 1 is the identity).
void solo(WorkflowBuilder& builder);

}  // namespace casync
