#pragma once

#include <cstdint>

#include "executor/memory/memory.hpp"
#include "executor/run/compute.hpp"
#include "task/instance.hpp"

/// What becomes of what is kept of gradients besides encoding, which is the codec's: it outlives a change of plan and
/// an abort. Called on the progress thread.
namespace casync {

/// `instance` begins: finds what is kept of its gradient, and starts the codec's state if there is none or another's.
/// What another codec held back goes where this one holds it back, or, if it never does, joins the input, once: the
/// plan may change its codec and no mass is lost. The sum is then written to the output, which becomes the input.
/// Counts the step. For a stand-in what is held back stays so: it only moves to the residual where the codec is
/// another.
void take_over(Memory& memory, const TaskGraph& graph, std::uint32_t instance, const ComputeContext& context);

/// `run` ended before it was through, and no worker is at it any more. Afterwards exactly one holds of each partition:
///   delivered     the output holds the final value, and the residual what this rank's encoding lost;
///   given back    it was encoded: the residual is what it was plus this rank's gradient, up to rounding;
///   never taken   the residual is what it was.
/// The same holds of the array that a codec with feedback of its own calls pending; its other arrays are as encoding
/// has left them.
/// Units that were not finite were never taken. What was encoded is read from the payload, which is there: a
/// partition's memory is released after its last task, so never before its delivery. A sum that was encoded with other
/// ranks' contributions in it goes back without them, because each rank gives back its own.
void give_back(Memory& memory, const Instance& run, std::uint32_t instance, const ComputeContext& context);

}  // namespace casync
