#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/device.hpp"

namespace casync::cuda {

/// Rings when a stream has come so far, on a thread of the driver, which may not be called there. Any thread.
class Bell {
 public:
  explicit Bell(std::function<void()> ring) : state_(std::make_unique<State>()) { state_->ring = std::move(ring); }

  /// While the device is current. Throws DeviceFailure.
  void ring_after(const Driver& driver, Stream stream) {
    CASYNC_CUDA(driver, cuLaunchHostFunc, stream, ring, state_.get());
  }
  /// It rings no more, though streams may still come to it.
  void silence() {
    const std::lock_guard lock(state_->mutex);
    state_->ring = nullptr;
  }
  /// What a stream may still come to is never freed.
  void abandon() {
    static std::mutex mutex;
    static auto& kept = *new std::vector<std::unique_ptr<State>>;  // where a leak checker sees them
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(state_));
  }

 private:
  struct State {
    std::mutex mutex;
    std::function<void()> ring;
  };

  static void ring(void* state) {
    auto& of = *static_cast<State*>(state);
    const std::lock_guard lock(of.mutex);
    if (of.ring) of.ring();
  }

  std::unique_ptr<State> state_;
};

}  // namespace casync::cuda
