#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "casync/transport.hpp"
#include "casync/types.hpp"

/// What a session has done so far, in numbers: a snapshot of counters that are always on. Each number is exact; they
/// are read one after the other, while the session goes on.
namespace casync {

/// How often something took how long, in buckets that double from 1 µs to 67 s.
struct Histogram {
  static constexpr std::size_t kBounds = 27;
  /// The longest time of bucket `index`; the last bucket, number kBounds, has none.
  static constexpr Nanoseconds bound(std::size_t index) { return Nanoseconds{1000} << index; }
  std::array<std::uint64_t, kBounds + 1> counts{};
  Nanoseconds sum = 0;
};

/// Messages between this rank and one other, of one codec. Heads, checksums and control messages are not in them.
struct Traffic {
  std::uint64_t messages = 0;
  std::uint64_t raw_bytes = 0;   ///< of the elements that they stand for; 0 in a codec's later rounds
  std::uint64_t wire_bytes = 0;  ///< as they travel
};

/// What codecs compute, on all threads together.
struct Work {
  std::uint64_t tasks = 0;
  Nanoseconds time = 0;
};

struct CodecMetrics {
  std::string codec;
  std::uint64_t operations = 0;    ///< that have ended well
  std::uint64_t tensor_bytes = 0;  ///< of this rank's tensors in them
  Work encode, merge, decode;
  std::vector<Traffic> sent;      ///< per peer
  std::vector<Traffic> received;  ///< per peer
};

/// One gradient: what the planner predicted, and what it took on this rank. Where the whole model was planned, the
/// prediction is of the gradient among the others of its step; else alone, as if it shared no links and cores.
struct GradientMetrics {
  std::string tensor;
  std::uint64_t operations = 0;     ///< that have ended well; the next three are of these, in all
  Nanoseconds time = 0;             ///< from when all ranks have agreed to begin until the result is there
  Nanoseconds predicted = 0;        ///< the same, by their plans
  Nanoseconds ready = 0;            ///< from the submit of the step's first gradient to its own
  std::uint64_t encoded_bytes = 0;  ///< of it that this rank has encoded, uncompressed
  std::uint64_t payload_bytes = 0;  ///< what they became
  Nanoseconds plan_time = 0;        ///< the mean `time` since it has the plan that it has
};

/// What is waiting or under way now.
struct QueueLengths {
  std::uint64_t operations = 0;     ///< submitted, and not ended
  std::uint64_t partitions = 0;     ///< waiting for memory of the pool
  std::uint64_t tasks = 0;          ///< encode, merge and decode, with a worker or waiting for one
  std::uint64_t sends = 0;          ///< waiting for their link
  std::uint64_t sends_flowing = 0;  ///< handed to the transport; what travels inside a head is not counted
};

/// Memory for payloads and partial sums, in bytes.
struct PoolMetrics {
  std::uint64_t capacity = 0;
  std::uint64_t used = 0;
  std::uint64_t peak = 0;
  std::uint64_t held = 0;  ///< taken from the system, in use or kept for the next step
};

/// How punctual one rank is, by the book of rank 0.
struct Lateness {
  std::uint64_t reports = 0;  ///< operations that rank 0 has heard it submit
  std::uint64_t last = 0;     ///< operations that all others had submitted before it
  Nanoseconds time = 0;       ///< of these: from the first rank's report to its own
};

struct Metrics {
  std::uint64_t steps = 0;  ///< begun; step n begins with the first tensor that is submitted for its n-th reduction
  Histogram step_time;      ///< of each step but the last, which is under way: from its begin to the next one's
  Histogram exposed_time;   ///< of the same steps: how long threads of the program waited for operations
  Nanoseconds waited = 0;   ///< the same in all, outside of steps and in the last one too
  std::uint64_t failed_operations = 0;
  std::vector<CodecMetrics> codecs;
  std::vector<GradientMetrics> gradients;  ///< what was allreduced or reducescattered, by name
  QueueLengths queues;
  PoolMetrics pool;
  TransportCounters transport;
  std::vector<Lateness> lateness;  ///< per rank, on rank 0; empty elsewhere
};

}  // namespace casync
