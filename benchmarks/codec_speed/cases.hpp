#pragma once

#include <functional>
#include <string>
#include <vector>

#include "memory.hpp"

namespace casync::bench {

/// The least that a ratio should be; 0: nobody asked for one.
struct Goals {
  double to_memcpy = 0;
  double to_bare = 0;
};

/// One operation of one codec on a gradient in memory, and the bare loop of the same work (bare.hpp).
struct Case {
  std::string operation;
  Goals goals;
  std::function<void()> run;
  std::function<void()> bare;
};

/// Encode (with feedback where the codec has it), decode, decode+merge in place, and what a rank does with the payloads
/// of 4: the owner of a partition merges three and its own contribution, then does the same with an encode of the mean;
/// with a codec that gathers, all four are merged. A codec of two rounds: both with a decode at the end. The cases hold
/// the memory of payloads, residual and state, which is that of a rank after a few steps.
std::vector<Case> make_cases(const std::string& codec, Buffers& buffers);

}  // namespace casync::bench
