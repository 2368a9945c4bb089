#include <algorithm>
#include <array>

#include "casync/planner.hpp"

namespace casync {
namespace {

struct Prior {
  std::string_view family;
  CodecCost cost;
  double usual_payload = 0;  // bytes for each value; 0: the most that there can be
};

// Of one core that copies 8 GB/s, at the ratios to memcpy that the kernels are built for, with room for a slower
// machine.
constexpr std::array kPriors{
    Prior{"none", {}},
    Prior{"fp16", {2e-6, 0.12e-9, 2e-6, 0.12e-9}},
    Prior{"bf16", {2e-6, 0.12e-9, 2e-6, 0.12e-9}},
    Prior{"onebit", {2e-6, 0.20e-9, 2e-6, 0.10e-9}},
    Prior{"efsignsgd", {2e-6, 0.20e-9, 2e-6, 0.10e-9}},
    Prior{"terngrad", {2e-6, 0.25e-9, 2e-6, 0.12e-9}},
    Prior{"ternary", {2e-6, 0.25e-9, 2e-6, 0.12e-9}},
    Prior{"int8", {2e-6, 0.25e-9, 2e-6, 0.12e-9}},
    Prior{"qsgd", {2e-6, 0.25e-9, 2e-6, 0.15e-9}},
    Prior{"minmax_uint8", {2e-6, 0.25e-9, 2e-6, 0.12e-9}},
    Prior{"lossless", {2e-6, 0.45e-9, 2e-6, 0.25e-9}, 1.51},
    Prior{"int4", {2e-6, 0.32e-9, 2e-6, 0.15e-9}},
    Prior{"randomk", {2e-6, 0.25e-9, 2e-6, 0.10e-9}},
    Prior{"topkc", {2e-6, 0.35e-9, 2e-6, 0.12e-9}},
    Prior{"thc", {2e-6, 2.0e-9, 2e-6, 0.70e-9}},
    Prior{"fp8", {2e-6, 0.90e-9, 2e-6, 0.35e-9}},
};
constexpr CodecCost kCautious{5e-6, 0.5e-9, 5e-6, 0.5e-9};

/// Returns the prior for the name before the bracket, or nullptr if there is none.
const Prior* prior_of(std::string_view spec) {
  const std::string_view family = spec.substr(0, spec.find('('));
  const auto at = std::ranges::find(kPriors, family, &Prior::family);
  return at == kPriors.end() ? nullptr : &*at;
}

}  // namespace

CodecCost CostTable::of(std::string_view spec) const {
  if (const auto own = codecs.find(spec); own != codecs.end()) return own->second;
  const Prior* const prior = prior_of(spec);
  return prior != nullptr ? prior->cost : kCautious;
}

std::optional<double> CostTable::usual_payload(std::string_view spec) {
  const Prior* const prior = prior_of(spec);
  if (prior == nullptr || prior->usual_payload == 0) return std::nullopt;
  return prior->usual_payload;
}

bool is_computed_there(const CostTable& costs, std::string_view spec, MemoryKind memory, bool sends_raw) {
  return memory == MemoryKind::device && !sends_raw && costs.device_codecs.contains(spec);
}

ComputeCost compute_cost(const CostTable& costs, std::string_view spec, MemoryKind memory, bool sends_raw, double raw) {
  if (memory != MemoryKind::device) return {costs.of(spec)};
  if (is_computed_there(costs, spec, memory, sends_raw)) return {costs.device_codecs.find(spec)->second};
  return {costs.of(spec), 2 * raw * costs.copy_s_per_byte};
}

}  // namespace casync
