#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "casync/types.hpp"
#include "cuda/bell.hpp"
#include "cuda/device.hpp"
#include "cuda/nccl.hpp"
#include "cuda/watchdog.hpp"

namespace casync::cuda {

/// A communicator of NCCL between ranks, each with a device: never the framework's. It moves memory in groups of sends
/// and receives, on a stream of its own, one group after the other. Nothing waits, but `end`.
///
/// NCCL may do what a call asks for after the call, and then the next one has to wait: `advance` asks for it. A
/// communicator that does not go on for `patience` is aborted, and the process ends if that hangs (Watchdog).
///
/// One thread at a time, while the device is current.
class Communicator {
 public:
  /// Memory of the device that goes to a peer or comes from it. The n-th sent to a peer meets the n-th received there,
  /// which has as many bytes.
  struct Part {
    bool is_send;
    Rank peer;
    std::byte* memory;
    std::size_t bytes;  ///< not 0
  };

  /// Begins. `ring`: something may have to be told; on any thread, and it may be called for nothing. Throws
  /// DeviceFailure.
  Communicator(const Nccl& nccl, const Device& device, const NcclId& id, Rank rank, Rank size, Nanoseconds patience,
               std::function<void()> ring);
  /// Aborts it unless it has ended.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Makes progress. Throws DeviceFailure, each time, once it has failed or was told to end.
  void advance();
  /// Whether all ranks have come, and the next group may be launched.
  bool is_ready() const { return state_ == State::ready; }
  /// A group, when it is ready. Its parts go on independently of each other; peers and directions in order. Throws
  /// DeviceFailure.
  void launch(std::span<const Part> parts);

  std::uint64_t launched() const { return launched_; }  ///< groups
  std::uint64_t over() const { return over_; }          ///< how many of them, which is the first ones

  /// Nobody uses it any more: it is aborted. Does not wait.
  void condemn(const std::string& why) { watchdog_.condemn(why); }
  /// Together with the other ranks, when all groups are over; who does not get so far within `patience` aborts. Then
  /// nothing reads or writes the memory of any group.
  void end(Nanoseconds patience);

 private:
  enum class State { starting, ready, launching, finalizing, finalized };

  void check();
  void advance_locked();
  void reap();
  bool look_again();
  void release();
  void watch();
  void finalize();
  [[noreturn]] void fail(const std::string& why);

  const Nccl& nccl_;
  const Device& device_;
  const std::function<void()> ring_;
  NcclComm comm_ = nullptr;
  Stream stream_ = nullptr;
  Bell bell_;
  Events events_;
  std::mutex mutex_;  // of what follows, and of the calls of NCCL but its last one
  std::atomic<State> state_{State::starting};
  std::deque<EventHandle> pending_;  // an event for each group that is on the stream and not over
  std::uint64_t launched_ = 0;
  std::atomic<std::uint64_t> over_{0};
  Watchdog watchdog_;
};

}  // namespace casync::cuda
