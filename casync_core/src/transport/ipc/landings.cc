#include "transport/ipc/landings.hpp"

#include <bit>

namespace casync::ipc {

Landings& Landings::of(const cuda::Device& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, Landings>;  // other processes may write it until the very end of this one
  const std::lock_guard lock(mutex);
  return all[device.ordinal()];
}

const Landing& Landings::take(std::size_t bytes) {
  constexpr std::size_t kLeast = 64 << 10;
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
