#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "executor/operation.hpp"

namespace casync {

/// What a rank says of results that are not finite: where they came from, as far as it knows, and not too often. Of one
/// step it names the first few tensors; of many such steps it tells the first ones, and after that the 16th, the 32nd
/// and so on.
class NonfiniteLog {
 public:
  /// What to log of `operation`, which has ended; nothing if it was finite, or if enough was said.
  std::optional<std::string> text_of(const Operation& operation);

 private:
  std::uint64_t step_ = 0;   ///< the last one that was told of
  std::uint64_t steps_ = 0;  ///< how many there were
  int named_ = 0;            ///< tensors of the last one
};

}  // namespace casync
