#include "transport/ipc/landings.hpp"

#include <bit>
#include <tuple>
#include <utility>

namespace casync::ipc {

Landings& Landings::of(const cuda::Device& device) {
  static std::mutex mutex;
  // Other processes may write them until the very end of this one, and so long the device has its context.
  static auto& all = *new std::map<int, std::pair<cuda::Device, Landings>>;
  const std::lock_guard lock(mutex);
  const auto made = all.try_emplace(device.ordinal(), std::piecewise_construct,
                                    std::forward_as_tuple(device.driver(), device.ordinal()), std::tuple<>());
  return made.first->second.second;
}

const Landing& Landings::take(std::size_t bytes) {
  constexpr std::size_t kLeast =
      2 << 20;  // less may lie in one block with memory of others, which is shared as a whole
  const std::size_t size = std::bit_ceil(std::max(bytes, kLeast));
  const std::lock_guard lock(mutex_);
  auto& spare = free_[size];
  if (!spare.empty()) {
    const std::uint32_t number = spare.back();
    spare.pop_back();
    return all_.at(number);
  }
  Landing made{.number = static_cast<std::uint32_t>(all_.size()), .bytes = size};
  const cuda::Driver& driver = cuda::driver();
  CASYNC_CUDA(driver, cuMemAlloc_v2, &made.memory, size);
  const cuda::Result result = driver.cuIpcGetMemHandle(&made.handle, made.memory);
  if (result != cuda::kSuccess) driver.cuMemFree_v2(made.memory);
  driver.check(result, "cuIpcGetMemHandle");
  return all_[made.number] = made;
}

void Landings::give(const Landing& landing) {
  const std::lock_guard lock(mutex_);
  free_[landing.bytes].push_back(landing.number);
}

}  // namespace casync::ipc
