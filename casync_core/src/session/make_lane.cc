#include "session/make_lane.hpp"

#include <algorithm>
#include <utility>

#include "casync/error.hpp"
#include "casync/session.hpp"
#include "transport/ipc/ipc_lane.hpp"
#include "transport/nccl/nccl_lane.hpp"

namespace casync {

LaneKind lane_of(std::string_view setting, std::span<const std::uint32_t> host_of) {
  if (std::ranges::find(kDeviceLaneName, setting) == kDeviceLaneName.end()) {
    std::string names;
    for (const std::string_view name : kDeviceLaneName) names += detail::concat(names.empty() ? "" : ", ", name);
    throw InvalidArgument(detail::concat("there is no device lane '", setting, "'; there are ", names));
  }
  const bool on_one_host = std::ranges::all_of(host_of, [&](std::uint32_t host) { return host == host_of.front(); });
  if (host_of.size() < 2 || setting == "host") return LaneKind::host;
  return setting == "nccl" || (setting == "auto" && !on_one_host) ? LaneKind::nccl : LaneKind::ipc;
}

std::unique_ptr<DeviceLane> make_lane(LaneKind kind, int device, LaneWorld world, const std::string& nccl,
                                      std::function<void()> ring) {
  switch (kind) {
    case LaneKind::host:
      return nullptr;
    case LaneKind::ipc:
      return std::make_unique<ipc::IpcLane>(device, world, std::move(ring));
    case LaneKind::nccl:
      return std::make_unique<nccl::NcclLane>(device, world, nccl::NcclLane::Options{.library = nccl}, std::move(ring));
  }
  throw InternalError("a lane of no kind");
}

}  // namespace casync
