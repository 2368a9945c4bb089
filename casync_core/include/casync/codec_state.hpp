#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "casync/staggered.hpp"

namespace casync {

/// What a codec keeps of one gradient: its state arrays as they are in checkpoints.
struct CodecState {
  std::string codec;               ///< canonical spec of whose it is; empty: nobody's
  bool agreed = false;             ///< it holds what the ranks agreed on (Codec::agree)
  std::uint32_t steps = 0;         ///< how many steps of the gradient came before
  std::vector<StateArray> arrays;  ///< all of Codec::state, or, where it was set, some
  std::vector<FloatArray> values;  ///< of the arrays
};

}  // namespace casync
