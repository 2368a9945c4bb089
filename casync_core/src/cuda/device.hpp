#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "cuda/driver.hpp"

namespace casync::cuda {

/// One device of this process, through its primary context, which the framework uses too: never reset.
class Device {
 public:
  /// Throws DeviceFailure.
  Device(const Driver& driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  DeviceNumber number() const { return number_; }

  /// The device is this thread's current one as long as it lives. Whoever calls the driver has one. Meanwhile calls of
  /// this thread leave a capture alone that another thread has begun, of a graph that has nothing to do with us.
  class Current {
   public:
    explicit Current(const Device& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
    int capture_mode_ = kRelaxed;  // the thread's own, while it is not that
  };

  /// A stream beside those of the framework: it does not wait for the legacy default stream, and comes first where
  /// both want a copy engine. While the device is current.
  Stream make_stream() const;

 private:
  const Driver& driver_;
  int ordinal_;
  DeviceNumber number_ = 0;
  Context context_ = nullptr;
};

/// Events of one device without timing, used again and again: making one takes longer than recording it. Any thread,
/// while the device is current.
class Events {
 public:
  explicit Events(const Device& device) : device_(device) {}
  ~Events();  // while the device is current; all were given back
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  EventHandle take();
  void give(EventHandle event);
  /// Whether everything that `event` was recorded after is done; of one that was never recorded it is.
  bool is_over(EventHandle event) const;

 private:
  const Device& device_;
  std::mutex mutex_;
  std::vector<EventHandle> free_;
};

}  // namespace casync::cuda
