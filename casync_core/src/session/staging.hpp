#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "casync/device_stream.hpp"
#include "cuda/bell.hpp"
#include "cuda/device.hpp"
#include "cuda/pinned.hpp"
#include "executor/operation.hpp"

namespace casync {

/// What one operation on memory of a device has of the host meanwhile.
struct Staged {
  std::byte* input = nullptr;
  std::size_t input_bytes = 0;
  std::byte* output = nullptr;  ///< the input's, where the operation works in place
  std::size_t output_bytes = 0;
  cuda::DevicePointer target = 0;
  cuda::EventHandle arrived = nullptr;  ///< the input is there
  cuda::EventHandle left = nullptr;     ///< the output is on the device; null: it was not sent back

  bool in_place() const { return output == input; }
};

/// The way of a session's operations on memory of a device: through pinned memory of the host, on two streams beside
/// the program's.
///
///     program's stream    ... backward | ready                                        left | optimizer ...
///     stream inward                      ready | copy to the host | arrived
///     host                                                          arrived | operation
///     stream outward                                                          copy to the device | left
///
/// A bar is an event: what stands behind it waits for it. The host waits for `arrived` alone, and for `left` only where
/// an operation has a completion, which is called when its result is on the device.
///
/// A copy that is over rings, on a thread of the driver, which may not be called there: so whoever makes progress looks
/// at the events, at the begin of each turn. After an error nothing rings, so it looks again after kLook at the latest.
/// The first error of the driver loses the device: what was under way fails, and the session with it. So does a copy
/// that does not end when the session is shut down; then what it may still touch is never freed.
class Staging {
 public:
  static constexpr Nanoseconds kLook = 1'000'000;

  struct Callbacks {
    /// Its input is in the host's memory; with the progress role.
    std::function<void(std::uint32_t registration, Operation&)> arrived;
    std::function<void(Operation&)> left;            ///< its result is on the device, or failed; with the role
    std::function<void(const std::string&)> failed;  ///< the device is lost, and why; with the role
    std::function<void()> ring;                      ///< something is over; on any thread
  };

  /// `self` is this rank, which a failed operation blames. Throws DeviceFailure.
  Staging(int device, Rank self, Callbacks callbacks);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  int device() const { return device_.ordinal(); }

  // Any thread.

  /// Begins to copy the operation's input to the host, for when `stream` has come to this point, and has it work there.
  /// `output_bytes`: of its result. Throws DeviceFailure, and InvalidArgument while the stream is being captured.
  std::unique_ptr<Staged> copy_in(Operation& operation, void* stream, std::size_t output_bytes);
  /// The operation works on the device: its input is there when `stream` has come to this point. Throws as copy_in.
  std::unique_ptr<Staged> await(Operation& operation, void* stream);
  /// Has `arrived` called for the operation, after those that were expected before. One that works on the host's
  /// memory, a join, waits for these alone.
  void expect(std::uint32_t registration, Operation& operation);
  /// Whether the input of some operation is under way.
  bool expects_something();
  /// What `stream` gets to do from now on comes after the result. Throws DeviceFailure, and InvalidArgument while the
  /// stream is being captured.
  void order_after(const Staged& staged, void* stream);
  /// The operation is forgotten. `touched`: transfers may still touch its memory, until the session is closed.
  void give_back(std::unique_ptr<Staged> staged, bool touched);

  // With the progress role.

  /// Calls back for what is over. In how long it is to be called again at the latest, if something is under way.
  std::optional<Nanoseconds> look();
  /// The operation is over: begins to copy its result to the device. False: `left` will be called for it.
  bool copy_out(Operation& operation);
  /// Loses the device.
  void lose(const std::string& why);
  /// The same, because a copy does not end.
  void abandon(const std::string& why);
  /// The operation failed because the device did.
  void fail(Operation& operation) const;
  /// Waits until nothing copies, and rings, any more. Once, at the end, before what is rung goes.
  void quiesce();

 private:
  struct Expected {
    std::uint32_t registration;
    Operation* operation;
  };
  void refuse_capture(cuda::Stream stream) const;
  bool is_over(const Operation& operation) const;
  void free(Staged& staged, cuda::EventHandle after);

  const cuda::Driver& driver_;
  cuda::Device device_;
  Rank self_;
  Callbacks callbacks_;
  cuda::Bell bell_;
  std::unique_ptr<cuda::Events> events_;
  std::unique_ptr<cuda::PinnedPool> pool_;
  cuda::Stream inward_ = nullptr;
  cuda::Stream outward_ = nullptr;
  std::atomic<bool> lost_{false};
  std::string why_;  // before `lost_`
  bool is_abandoned_ = false;

  std::mutex mutex_;
  std::deque<Expected> arriving_;                 // with the mutex; as they were submitted
  std::vector<std::unique_ptr<Staged>> touched_;  // with the mutex
  std::deque<Operation*> leaving_;                // with the progress role; as they are copied
};

}  // namespace casync
