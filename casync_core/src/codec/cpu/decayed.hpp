#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/cpu/unit_scratch.hpp"

namespace casync::codec {

/// The residual of one unit as its encoder takes it. A decay is applied to a copy: the residual itself is as it was
/// until `leave`, so a unit that is not finite, or a round that is not the last one, does not decay it.
class Decayed {
 public:
  /// `residual` may be null: there is none.
  Decayed(float decay, float* residual, std::int64_t n, UnitScratch& scratch)
      : residual_(residual), n_(n), values_(residual) {
    if (residual == nullptr || decay == 1.0F) return;
    values_ = scratch.decayed_for(n);
    std::transform(residual, residual + n, values_, [decay](float value) { return decay * value; });
  }

  /// What is added to the gradient, and where what encoding lost is written; null if there is no residual.
  float* values() const { return values_; }
  /// The unit has been encoded, and `values` is what that lost.
  void leave() const {
    if (values_ != residual_) std::copy_n(values_, n_, residual_);
  }

 private:
  float* residual_;
  std::int64_t n_;
  float* values_;
};

}  // namespace casync::codec
