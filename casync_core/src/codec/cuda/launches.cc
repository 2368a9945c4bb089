#include "codec/cuda/launches.hpp"

namespace casync::codec::cuda {
namespace {

namespace gpu = casync::cuda;

gpu::DevicePointer address(const std::byte* of) { return reinterpret_cast<gpu::DevicePointer>(of); }

}  // namespace

void Launches::zero(std::byte* memory, std::size_t bytes) {
  steps_.push_back([=](const gpu::Driver& driver, const std::byte*, gpu::Stream stream) {
    CASYNC_CUDA(driver, cuMemsetD8Async, address(memory), 0, bytes, stream);
  });
}

void Launches::copy_to_device(std::byte* to, const std::byte* from, std::size_t bytes) {
  steps_.push_back([=](const gpu::Driver& driver, const std::byte*, gpu::Stream stream) {
    CASYNC_CUDA(driver, cuMemcpyHtoDAsync_v2, address(to), from, bytes, stream);
  });
}

void Launches::copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes) {
  steps_.push_back([=](const gpu::Driver& driver, const std::byte*, gpu::Stream stream) {
    CASYNC_CUDA(driver, cuMemcpyDtoHAsync_v2, to, address(from), bytes, stream);
  });
}

void Launches::run(std::byte* pinned, gpu::Arena& arena, gpu::Stream stream) {
  std::byte* const kept = arena.take(arguments_.size());
  if (!arguments_.empty()) {
    std::memcpy(pinned, arguments_.data(), arguments_.size());
    CASYNC_CUDA(driver_, cuMemcpyHtoDAsync_v2, address(kept), pinned, arguments_.size(), stream);
  }
  for (const Step& step : steps_) step(driver_, kept, stream);
}

}  // namespace casync::codec::cuda
