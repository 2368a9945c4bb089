#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/codec.hpp"
#include "plan/planning.hpp"

namespace casync {

/// Some elements of a gradient: a copy of up to kPieces pieces that lie evenly within it.
struct GradientCopy {
  static constexpr std::int64_t kPieces = 4;
  static constexpr std::int64_t kPieceElements = 16 << 10;

  /// `values` are the gradient's `numel` elements.
  GradientCopy(std::string_view tensor, DType dtype, std::int64_t numel, const void* values);

  std::string tensor;
  DType dtype = DType::float32;
  std::int64_t numel = 0;           ///< of the gradient
  std::vector<std::byte> elements;  ///< one piece after the other
};

/// Times a codec, for the planner: every candidate under the same conditions, run or not. A codec with feedback is
/// timed with a residual or state of its own, one of several rounds in all of them.
///
/// On scratch data, in float32, it takes about 10 ms on one core and 12 MB while it lasts. On the copy of a gradient it
/// takes a tenth of that, and finds out too how long the payloads are. It encodes the copy several times, and the
/// residual of one time goes into the next one; for what a codec sends depends on what it has held back.
class CodecTrial {
 public:
  explicit CodecTrial(std::string_view codec) : codec_(codec) {}
  CodecTrial(std::string_view codec, GradientCopy gradient) : codec_(codec), gradient_(std::move(gradient)) {}

  void run();
  // Their texts live as long as the trial.
  const std::vector<Measurement>& results() const { return results_; }
  const std::optional<EncodedSize>& size() const { return size_; }  ///< nothing: it was no gradient's

 private:
  void run_on_scratch(const Codec& codec);
  void run_on_gradient(const Codec& codec);

  std::string codec_;
  std::optional<GradientCopy> gradient_;
  std::vector<Measurement> results_;
  std::optional<EncodedSize> size_;
};

/// The gradient that codecs are timed on: the same numbers, evenly within [-1, 1), for each of them.
void fill_for_trial(std::span<float> values);

}  // namespace casync
