#pragma once

#include "casync/codec.hpp"
#include "codec/cuda/kernels/report_arguments.hpp"

namespace casync::codec::cuda {

/// A segment to be computed, and where the host finds what is said of it: pinned, and as it was made.
struct DeviceJob {
  const Segment* segment = nullptr;
  SegmentReport* report = nullptr;
  bool by_lane = false;  ///< payloads are memory of the device, not pinned memory of the host
};

}  // namespace casync::codec::cuda
