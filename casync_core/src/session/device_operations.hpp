#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "executor/real/real_executor.hpp"
#include "plan/planning.hpp"
#include "session/definitions.hpp"
#include "session/handle_table.hpp"
#include "session/make_lane.hpp"
#include "session/staging.hpp"

namespace casync {

/// A session's operations on memory of a device: each is computed there, if its codec can, or else on the host, to
/// which its input is copied and from which its result comes back. A process drives one device, which the first
/// operation on it chooses.
///
/// Before there is one, all that asks for it finds nothing to do. The session's mutex guards definitions and handles;
/// the progress role comes before it.
class DeviceOperations {
 public:
  /// What it has of its session, which outlives it.
  struct Context {
    const SessionOptions& options;
    const Transport& transport;
    const Log& log;
    std::mutex& mutex;
    Definitions& definitions;
    HandleTable& handles;
  };
  struct Callbacks {
    /// An operation has its result on the device, or failed; with the progress role.
    std::function<void(Operation&)> finished;
    /// Whether plans weigh codec `spec` for what is defined; with the mutex.
    std::function<bool(const std::string& spec)> weighs;
    /// What a codec takes on the device; with the progress role.
    std::function<void(const Measurement&)> measured;
  };

  DeviceOperations(const Context& context, LaneKind lane, Callbacks callbacks)
      : context_(context), lane_(lane), callbacks_(std::move(callbacks)) {}

  /// Before the first operation: what they are submitted to.
  void use(RealExecutor& executor) { executor_ = &executor; }

  // With the mutex.

  /// Has the operation of `entry`, whose input is there when `where` has come to this point, work on the device or on
  /// the host. Throws DeviceFailure, and InvalidArgument for another device and while the stream is being captured.
  void stage(HandleTable::Entry& entry, const DeviceStream& where);
  /// As Staging has them.
  void expect(std::uint32_t registration, Operation& operation) { staging_->expect(registration, operation); }
  bool expects_something() const { return staging_ != nullptr && staging_->expects_something(); }
  void order_after(const Staged& staged, void* stream) { staging_->order_after(staged, stream); }
  void give_back(std::unique_ptr<Staged> staged, bool touched) { staging_->give_back(std::move(staged), touched); }
  void fail(Operation& operation) const { staging_->fail(operation); }

  // Without it, any thread.

  /// From now on the device has the code of codec `spec`, and what no codec has.
  void add_code(int device, const std::string& common, const std::string& spec, const std::string& code);
  /// At a shutdown: inputs that are under way come to the host, where they are ended, or the device is given up.
  void await_inputs();
  /// At its end, when nobody makes progress: the same for results on their way to the device.
  void await_results();

  // With the progress role.

  /// At the begin of a turn: calls back for what is over. In how long it is to be called again at the latest.
  std::optional<Nanoseconds> look();
  /// An operation on the device's memory is over. Returns whether its result is there; else `finished` will be called.
  bool ended(Operation& operation);
  /// The device is lost.
  void lose(const std::string& why) { staging_->lose(why); }

 private:
  static constexpr Nanoseconds kCopyTime = 1'000'000'000;  // for copies that are under way at a shutdown
  Staging& staging_for(int device);
  void look_at_plan(const Operation& operation);
  void tell_of_lane();

  Context context_;
  LaneKind lane_;
  Callbacks callbacks_;
  RealExecutor* executor_ = nullptr;
  std::unique_ptr<Staging> staging_;       // with the mutex; null before the first operation
  std::atomic<Staging*> in_use_{nullptr};  // the same, for who makes progress
  std::mutex adding_;                      // of code
  CudaStream* stream_ = nullptr;           // the executor's, with the mutex; null: no code was given
  bool has_told_of_lane_ = false;          // with the progress role
};

}  // namespace casync
