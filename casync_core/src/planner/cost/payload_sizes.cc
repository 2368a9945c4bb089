#include "planner/cost/payload_sizes.hpp"

#include <algorithm>

namespace casync {

void PayloadSizes::add(const EncodedSize& size) {
  if (size.raw_bytes <= 0) return;
  Gradient& gradient = gradients_[std::string(size.tensor)];
  gradient.bytes = size.tensor_bytes;
  const auto [at, is_new] = gradient.codecs.try_emplace(std::string(size.codec));
  GradientState& kept = at->second;
  if (!is_new && size.of_trial && !kept.of_trial) return;
  if (kept.of_trial && !size.of_trial) kept.shares = {};
  kept.of_trial = size.of_trial;
  kept.shares.add(size.payload_bytes / size.raw_bytes);
}

bool PayloadSizes::has(std::string_view tensor, std::string_view codec) const {
  const auto at = gradients_.find(tensor);
  return at != gradients_.end() && at->second.codecs.contains(codec);
}

void PayloadSizes::tell(std::map<std::string, MeasuredGradient, std::less<>>& gradients) const {
  for (const auto& [tensor, gradient] : gradients_) {
    MeasuredGradient& told = gradients[tensor];
    told.bytes = gradient.bytes;
    for (const auto& [codec, kept] : gradient.codecs) told.payload_share[codec] = mean(kept.shares.values());
  }
}

double largest_payload(const Signature& signature, const Codec& codec) {
  double bytes = 0;
  for (std::size_t round = 0; round < codec.info().rounds.size(); ++round) {
    bytes += static_cast<double>(
        codec.bound(signature.shape, signature.dtype, {0, signature.shape.numel()}, static_cast<int>(round)));
  }
  return bytes;
}

double expected_payload(const CostTable& costs, std::string_view tensor, const Signature& signature,
                        const Codec& codec) {
  const double largest = largest_payload(signature, codec);
  if (codec.info().fixed_size) return largest;
  const double values = static_cast<double>(signature.shape.numel());
  const std::string& spec = codec.info().spec;
  if (const auto gradient = costs.gradients.find(tensor); gradient != costs.gradients.end()) {
    const std::map<std::string, double, std::less<>>& shares = gradient->second.payload_share;
    const auto share = shares.find(spec);
    if (share != shares.end()) {
      return std::min(values * static_cast<double>(size_of(signature.dtype)) * share->second, largest);
    }
  }
  const std::optional<double> usual = CostTable::usual_payload(spec);
  return usual ? std::min(values * *usual, largest) : largest;
}

}  // namespace casync
