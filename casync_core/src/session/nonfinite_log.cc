#include "session/nonfinite_log.hpp"

#include <algorithm>
#include <bit>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr int kTensorsOfOneStep = 4;
constexpr std::uint64_t kStepsInARow = 8;

std::string origin_of(const Operation& operation) {
  if (operation.nonfinite_ranks.empty())
    return "; the log of another rank says whose gradient it was, or the sum of finite ones is too large for its type";
  std::vector<std::uint32_t> ranks = operation.nonfinite_ranks;
  std::ranges::sort(ranks);
  std::string text = ranks.size() == 1 ? ", from rank " : ", from ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += detail::concat(i == 0 ? "" : ", ", ranks[i]);
  // Where the result replaces a contribution, the two cannot be told apart.
  if (operation.definition->signature.dtype == DType::float16) text += ", or because the sum is beyond float16";
  return text;
}

}  // namespace

std::optional<std::string> NonfiniteLog::text_of(const Operation& operation) {
  if (!operation.nonfinite && operation.nonfinite_ranks.empty()) return std::nullopt;
  if (operation.step != step_ || steps_ == 0) {
    step_ = operation.step;
    named_ = 0;
    ++steps_;
  }
  if (steps_ > kStepsInARow && !std::has_single_bit(steps_)) return std::nullopt;
  if (++named_ > kTensorsOfOneStep) return std::nullopt;
  std::string text = detail::concat("tensor ", operation.definition->name, " holds NaN or Inf in step ", operation.step,
                                    origin_of(operation));
  if (named_ == kTensorsOfOneStep) text += "; other tensors of this step are not named";
  if (steps_ >= kStepsInARow && named_ == 1) {
    text += detail::concat("; this is step ", steps_, " of that kind, and the next to be told of is the ", 2 * steps_,
                           "th");
  }
  return text;
}

}  // namespace casync
