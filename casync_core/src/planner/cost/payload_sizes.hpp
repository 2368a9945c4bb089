#pragma once

#include <map>
#include <string>
#include <string_view>

#include "casync/codec.hpp"
#include "casync/planner.hpp"
#include "plan/planning.hpp"
#include "planner/cost/recent.hpp"

namespace casync {

/// How large the payloads of one rank really are, of codecs whose payloads vary in size. Of each gradient and codec it
/// keeps the last kRecent operations. A trial on a copy of the gradient counts until the codec has run.
class PayloadSizes {
 public:
  static constexpr std::size_t kRecent = 8;

  void add(const EncodedSize& size);
  bool has(std::string_view tensor, std::string_view codec) const;
  void forget(const std::string& tensor) { gradients_.erase(tensor); }
  /// Writes the mean of what is kept to `payload_share` and `bytes` of each gradient.
  void tell(std::map<std::string, MeasuredGradient, std::less<>>& gradients) const;

 private:
  struct GradientState {
    Recent<double, kRecent> shares;
    bool of_trial = false;
  };
  struct Gradient {
    double bytes = 0;
    std::map<std::string, GradientState, std::less<>> codecs;
  };
  std::map<std::string, Gradient, std::less<>> gradients_;
};

/// Bytes of the payloads of gradient `tensor`, all rounds of `codec` together, as one rank encodes it: by its measured
/// share if there is one, else what is usual, else at most.
double expected_payload(const CostTable& costs, std::string_view tensor, const Signature& signature,
                        const Codec& codec);
/// The most that they can be.
double largest_payload(const Signature& signature, const Codec& codec);

}  // namespace casync
