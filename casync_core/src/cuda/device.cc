#include "cuda/device.hpp"

#include "casync/error.hpp"

namespace casync::cuda {

Device::Device(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
  CASYNC_CUDA(driver_, cuDeviceGet, &number_, ordinal);
  CASYNC_CUDA(driver_, cuDevicePrimaryCtxRetain, &context_, number_);
}

Device::~Device() { driver_.cuDevicePrimaryCtxRelease_v2(number_); }

Device::Current::Current(const Device& device) : driver_(device.driver_) {
  CASYNC_CUDA(driver_, cuCtxPushCurrent_v2, device.context_);
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

Device::Current::~Current() {
  driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
  Context context = nullptr;
  driver_.cuCtxPopCurrent_v2(&context);
}

Stream Device::make_stream() const {
  int least = 0;
  int greatest = 0;
  CASYNC_CUDA(driver_, cuCtxGetStreamPriorityRange, &least, &greatest);
  Stream stream = nullptr;
  CASYNC_CUDA(driver_, cuStreamCreateWithPriority, &stream, kNonBlocking, greatest);
  return stream;
}

Events::~Events() {
  for (const EventHandle event : free_) device_.driver().cuEventDestroy_v2(event);
}

EventHandle Events::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const EventHandle event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  EventHandle event = nullptr;
  CASYNC_CUDA(device_.driver(), cuEventCreate, &event, kNoTiming);
  return event;
}

void Events::give(EventHandle event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

bool Events::is_over(EventHandle event) const {
  const Result result = device_.driver().cuEventQuery(event);
  if (result == kNotReady) return false;
  device_.driver().check(result, "cuEventQuery");
  return true;
}

}  // namespace casync::cuda
