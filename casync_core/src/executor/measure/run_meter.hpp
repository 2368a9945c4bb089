#pragma once

#include <cstdint>
#include <vector>

namespace casync {

/// Adds up what this rank encodes in each run, by instance.
class RunMeter {
 public:
  struct Encoded {
    std::uint64_t raw_bytes = 0;
    std::uint64_t payload_bytes = 0;  ///< of all rounds
  };

  void begun(std::uint32_t instance) {
    if (instance >= runs_.size()) runs_.resize(instance + 1);
    runs_[instance] = {};
  }
  /// `raw_bytes` are 0 in a codec's later rounds, which add no elements.
  void encoded(std::uint32_t instance, std::uint64_t raw_bytes, std::uint64_t payload_bytes) {
    runs_[instance].raw_bytes += raw_bytes;
    runs_[instance].payload_bytes += payload_bytes;
  }
  const Encoded& of(std::uint32_t instance) const { return runs_[instance]; }

 private:
  std::vector<Encoded> runs_;
};

}  // namespace casync
