#pragma once

#include <cstdint>

#include "executor/memory/memory.hpp"

namespace casync {

/// What operations and their messages come to in bytes: one answer for all who move or count them.

/// This rank's own tensor: what it gives to an allgather or an alltoall, else the whole gradient.
std::uint64_t raw_bytes_of(const Operation& operation);

struct MessageBytes {
  std::uint64_t raw = 0;   ///< the elements that it stands for; 0 in a codec's later rounds, which add no elements
  std::uint64_t wire = 0;  ///< as it travels
};

/// Of the send or receive `task` of `instance`, from when it can be sent or has arrived until its memory is released: a
/// codec may have written less than it may.
MessageBytes bytes_of_message(const TaskGraph& graph, const Memory& memory, std::uint32_t instance, const Task& task);

}  // namespace casync
