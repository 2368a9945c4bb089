#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "casync/memory.hpp"
#include "executor/run/compute.hpp"

namespace casync {

/// Runs compute jobs somewhere: a thread pool, the stream of a device, or a virtual processor.
class Workers {
 public:
  /// Jobs that are through, each with the text of what went wrong, or none.
  using Finished = std::vector<std::pair<std::unique_ptr<Job>, std::string>>;

  virtual ~Workers() = default;
  /// Takes a batch of prepared jobs.
  virtual void run(std::vector<std::unique_ptr<Job>> batch) = 0;
};

/// The stream of a device, and the memory that belongs to it. A batch is launched when `run` returns; batches run in
/// that order. A job whose codec the device does not have is computed by the host, at its place in the order.
class Stream : public Workers {
 public:
  /// Whether the device computes runs of `graph` for gradients of `signature`, whose messages go by its lane or not.
  virtual bool supports(const TaskGraph& graph, const Signature& signature, bool by_lane) const = 0;
  /// Memory that the device, the host and the network reach.
  virtual Allocator& shared() = 0;
  /// Memory of the device.
  virtual Allocator& own() = 0;
  /// A copy of `values` where the device reaches them; null: there is no memory for it. With `must` the host cannot do
  /// the work instead, so that loses the device.
  virtual std::unique_ptr<FarFloats> send(std::span<const float> values, bool must) = 0;
  /// What lies there, when all that was launched before is over, for which it waits. None, of a device that is lost.
  virtual std::vector<std::byte> look(const void* data, std::size_t bytes) = 0;
  /// The operation's memory is the device's, and the host is to work on it: copies its input to memory of the host,
  /// where it works from now on. Waits for the device.
  virtual void fetch(Operation& operation) = 0;
  /// What was fetched is over: its result, if it is well, is copied to the device, where the operation works again.
  /// Waits for it.
  virtual void restore(Operation& operation) = 0;
  /// Why the device is lost; empty: it is well. Nothing above throws: what it is asked for then fails later, by name.
  virtual const std::string& failure() const = 0;
};

}  // namespace casync
