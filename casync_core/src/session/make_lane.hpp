#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "casync/device_lane.hpp"

namespace casync {

/// The ways that devices have to each other.
enum class LaneKind : std::uint8_t { host, ipc, nccl };

/// Which one ranks on the hosts `host_of` use by `setting`, one of kDeviceLaneName. Throws InvalidArgument for another.
LaneKind lane_of(std::string_view setting, std::span<const std::uint32_t> host_of);

/// The lane of `device`; null: the host carries what devices send. `nccl`: as SessionOptions has it. `ring`, on any
/// thread: something of it is over. Throws DeviceFailure.
std::unique_ptr<DeviceLane> make_lane(LaneKind kind, int device, LaneWorld world, const std::string& nccl,
                                      std::function<void()> ring);

}  // namespace casync
