#pragma once

#include <memory>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "plan/planning.hpp"

namespace casync {

/// Times a codec on scratch data of a device, for the planner, as CodecTrial does on the host: on a stream of its own,
/// which it waits for. A few milliseconds, and 4 MB of the device and 2 of pinned memory while it lasts, besides the
/// codec's state.
class DeviceTrial {
 public:
  /// `common`, `code`: as CudaStream takes them. Throws DeviceFailure.
  DeviceTrial(int device, const std::string& common, const std::string& spec, const std::string& code);

  /// With that of copies to the device. None of a codec that no device computes, or that
  /// takes several rounds. Their texts live as long as the trial.
  const std::vector<Measurement>& results() const { return results_; }

 private:
  std::shared_ptr<const Codec> codec_;
  std::vector<Measurement> results_;
};

}  // namespace casync
