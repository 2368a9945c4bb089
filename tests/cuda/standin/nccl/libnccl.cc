// A stand-in for libnccl: the functions that CaSync calls, on the streams and the memory of the stand-in for libcuda,
// through shared memory. It is as strict as NCCL may be: a send waits for its receive, a group for all its peers to
// connect, and a call that comes before the one before it is over returns an error.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/nccl.hpp"
#include "standin/standin.hpp"
#include "standin/streams.hpp"
#include "standin_nccl.hpp"
#include "wires.hpp"

namespace standin {
namespace {

using namespace casync::cuda;

/// What tests have said.
struct Script {
  std::mutex mutex;
  std::map<std::pair<int, std::string>, std::pair<int, NcclResult>> failures;  // calls that are left, and how it fails
  std::atomic<int> delay_ms{0};
  std::atomic<bool> abort_hangs{false};
  std::atomic<int> comms{0};
  std::atomic<int> groups{0};
};
Script& script() {
  static auto& made = *new Script;
  return made;
}

/// What `name` is to return at once.
NcclResult told(int rank, const char* name) {
  Script& said = script();
  const std::lock_guard lock(said.mutex);
  for (const int whose : {rank, -1}) {
    const auto at = said.failures.find({whose, name});
    if (at == said.failures.end() || --at->second.first > 0) continue;
    const NcclResult result = at->second.second;
    said.failures.erase(at);
    return result;
  }
  return kNcclSuccess;
}

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

struct Part {
  bool is_send;
  int peer;
  std::byte* bytes;
  std::uint64_t count;
  casync::cuda::Stream stream;
  std::uint64_t message = 0;  // its number among those of its wire
  bool has_begun = false;
  std::uint64_t moved = 0;
};

}  // namespace
}  // namespace standin

namespace casync::cuda {

using standin::Part;
using standin::Wire;
using standin::Wires;

/// A communicator. Calls come from one thread at a time, but for ncclCommAbort.
struct NcclCommOpaque {
  NcclCommOpaque(std::string called, std::shared_ptr<Wires> opened, int number, int ranks)
      : name(std::move(called)), wires(std::move(opened)), rank(number), size(ranks) {
    ++standin::script().comms;
  }
  ~NcclCommOpaque() { --standin::script().comms; }

  Wire& wire(const Part& part) {
    return part.is_send ? wires->between[rank][part.peer] : wires->between[part.peer][rank];
  }

  /// False: it was aborted meanwhile.
  template <typename Condition>
  bool wait(const Condition& condition) const {
    while (!condition()) {
      if (is_aborted) return false;
      standin::nap();
    }
    return true;
  }

  void begin();
  void launch(std::vector<Part> parts);
  bool connect(const std::vector<Part>& parts);
  void run(std::vector<Part>& parts);
  bool advance(Part& part);
  void finalize();
  /// What was begun is over, unless there was an error meanwhile.
  void be_done() {
    NcclResult before = kNcclInProgress;
    state.compare_exchange_strong(before, kNcclSuccess);
  }
  void be_busy() {
    NcclResult before = kNcclSuccess;
    state.compare_exchange_strong(before, kNcclInProgress);
  }
  /// Nothing runs any more.
  void settle() {
    host.synchronize();
    while (running > 0) standin::nap();
  }

  const std::string name;
  const std::shared_ptr<Wires> wires;
  const int rank;
  const int size;
  std::atomic<NcclResult> state{kNcclInProgress};
  std::atomic<bool> is_aborted{false};
  std::atomic<int> running{0};  // groups that were launched on a stream
  std::uint64_t sent[standin::kMostRanks] = {};
  std::uint64_t received[standin::kMostRanks] = {};
  standin::Stream host;  // what is done after a call has returned
};

void NcclCommOpaque::begin() {
  host.queue([this] {
    if (++wires->arrived == size) Wires::forget(name);
    if (wait([&] { return wires->arrived >= size; })) be_done();
  });
}

void NcclCommOpaque::launch(std::vector<Part> parts) {
  for (Part& part : parts) part.message = part.is_send ? ++sent[part.peer] : ++received[part.peer];
  be_busy();
  ++standin::script().groups;
  ++running;
  host.queue([this, parts = std::move(parts)] {
    if (!connect(parts)) {
      --running;
      return;
    }
    struct Job {
      NcclCommOpaque* comm;
      std::vector<Part> parts;
    };
    standin_launch(
        parts.front().stream,
        [](void* argument) {
          const std::unique_ptr<Job> job(static_cast<Job*>(argument));
          job->comm->run(job->parts);
          --job->comm->running;
        },
        new Job{this, parts}, standin::script().delay_ms);
    be_done();
  });
}

/// The first group with a peer waits for that peer's first one, before it is on a stream.
bool NcclCommOpaque::connect(const std::vector<Part>& parts) {
  for (const Part& part : parts) (part.is_send ? wire(part).from_there : wire(part).to_here) = 1;
  return wait([&] {
    for (const Part& part : parts) {
      if (wire(part).from_there == 0 || wire(part).to_here == 0) return false;
    }
    return true;
  });
}

/// On the stream's thread: the parts of each peer and direction in order, all peers at a time.
void NcclCommOpaque::run(std::vector<Part>& parts) {
  if (const NcclResult result = standin::told(rank, "group"); result != kNcclSuccess) state = result;
  std::map<std::pair<int, bool>, std::deque<Part*>> lines;
  for (Part& part : parts) lines[{part.peer, part.is_send}].push_back(&part);
  while (!lines.empty() && !is_aborted) {
    bool has_moved = false;
    for (auto line = lines.begin(); line != lines.end();) {
      const Part& part = *line->second.front();
      if (wire(part).is_mismatched != 0) state = kNcclInvalidUsage;
      if (const NcclResult result = state; result != kNcclSuccess && result != kNcclInProgress) {
        wait([] { return false; });  // an error is known, and the kernel still waits, until it is aborted
        return;
      }
      has_moved |= advance(*line->second.front());
      if (part.has_begun && part.moved == part.count) line->second.pop_front();
      line = line->second.empty() ? lines.erase(line) : std::next(line);
    }
    if (!has_moved) standin::nap();
  }
}

/// Moves at most a chunk; false: the other side is not so far.
bool NcclCommOpaque::advance(Part& part) {
  Wire& wire = this->wire(part);
  if (part.is_send) {
    if (wire.begun < part.message || wire.filled != wire.emptied) return false;
    part.has_begun = true;
    if (wire.bytes != part.count) {
      wire.is_mismatched = 1;
      return true;
    }
    const auto bytes = std::min<std::uint64_t>(standin::kChunk, part.count - part.moved);
    std::memcpy(wire.chunk, part.bytes + part.moved, bytes);
    part.moved += bytes;
    ++wire.filled;
    return true;
  }
  if (!part.has_begun) {
    wire.bytes = part.count;
    wire.begun = part.message;
    part.has_begun = true;
    return true;
  }
  if (wire.filled == wire.emptied) return false;
  const auto bytes = std::min<std::uint64_t>(standin::kChunk, part.count - part.moved);
  std::memcpy(part.bytes + part.moved, wire.chunk, bytes);
  part.moved += bytes;
  ++wire.emptied;
  return true;
}

/// When its own groups are over it waits for the other ranks.
void NcclCommOpaque::finalize() {
  be_busy();
  host.queue([this] {
    if (!wait([this] { return running == 0; })) return;
    ++wires->finalized;
    if (wait([this] { return wires->finalized >= size; })) be_done();
  });
}

}  // namespace casync::cuda

using namespace standin;

namespace {

/// The group of this thread: how deep it is, and what it holds.
thread_local int depth = 0;
thread_local NcclComm grouped = nullptr;
thread_local std::vector<Part> group;
thread_local NcclResult refused = kNcclSuccess;  // the first error of a call in the group, of which nothing is done

NcclResult refuse(NcclResult result) {
  if (refused == kNcclSuccess) refused = result;
  return result;
}

NcclResult try_add(NcclComm comm, const void* memory, Part part, const char* name) {
  if (const NcclResult result = told(comm->rank, name); result != kNcclSuccess) return result;
  if (depth == 0 || (grouped != nullptr && grouped != comm)) return kNcclInvalidUsage;  // NCCL would have it
  if (comm->state != kNcclSuccess) return kNcclInvalidUsage;
  if (part.peer < 0 || part.peer >= comm->size || part.peer == comm->rank) return kNcclInvalidArgument;
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  if (part.count > 0 && standin_holds(address, part.count) == 0) return kNcclInvalidArgument;
  part.bytes = reinterpret_cast<std::byte*>(address + static_cast<std::uint64_t>(standin_distance()));
  grouped = comm;
  if (part.count > 0) group.push_back(part);
  return kNcclSuccess;
}

NcclResult add(NcclComm comm, const void* memory, const Part& part, const char* name) {
  const NcclResult result = try_add(comm, memory, part, name);
  return result == kNcclSuccess ? result : refuse(result);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
#define BEGIN(rank, name) \
  if (const NcclResult said = told(rank, #name); said != kNcclSuccess) return said

EXPORT NcclResult ncclGetVersion(int* version) {
  const char* const wanted = std::getenv("STANDIN_NCCL_VERSION");
  *version = wanted == nullptr ? 22'809 : std::atoi(wanted);
  return kNcclSuccess;
}
EXPORT const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage";
    case kNcclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unhandled error";
  }
}
EXPORT const char* ncclGetLastError(NcclComm) { return "says the stand-in"; }

EXPORT NcclResult ncclGetUniqueId(NcclId* id) {
  BEGIN(-1, ncclGetUniqueId);
  const std::string name = Wires::make();
  *id = {};
  std::memcpy(id->bytes, name.data(), name.size());
  return name.empty() ? kNcclInvalidUsage : kNcclSuccess;
}

EXPORT NcclResult ncclCommInitRankConfig(NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config) {
  BEGIN(rank, ncclCommInitRankConfig);
  if (config->magic != 0xcafebeef || config->size < sizeof(NcclConfig) || config->blocking != 0) {
    return kNcclInvalidArgument;
  }
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) return kNcclInvalidArgument;
  auto wires = Wires::open(id.bytes);
  if (wires == nullptr) return kNcclInvalidArgument;
  *comm = new NcclCommOpaque(id.bytes, std::move(wires), rank, size);
  (*comm)->begin();
  return kNcclInProgress;
}

EXPORT NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* result) {
  BEGIN(comm->rank, ncclCommGetAsyncError);
  *result = comm->state;
  return kNcclSuccess;
}

EXPORT NcclResult ncclCommFinalize(NcclComm comm) {
  BEGIN(comm->rank, ncclCommFinalize);
  if (comm->state != kNcclSuccess) return kNcclInvalidUsage;
  comm->finalize();
  return kNcclInProgress;
}
EXPORT NcclResult ncclCommDestroy(NcclComm comm) {
  BEGIN(comm->rank, ncclCommDestroy);
  comm->settle();
  delete comm;
  return kNcclSuccess;
}
EXPORT NcclResult ncclCommAbort(NcclComm comm) {
  while (script().abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  comm->is_aborted = true;
  comm->settle();
  delete comm;
  return kNcclSuccess;
}

EXPORT NcclResult ncclGroupStart() {
  ++depth;
  return kNcclSuccess;
}
EXPORT NcclResult ncclGroupEnd() {
  if (depth == 0) return kNcclInvalidUsage;
  if (--depth > 0) return kNcclSuccess;
  const NcclComm comm = std::exchange(grouped, nullptr);
  std::vector<Part> parts = std::exchange(group, {});
  if (const NcclResult result = std::exchange(refused, kNcclSuccess); result != kNcclSuccess) return result;
  if (comm == nullptr || parts.empty()) return kNcclSuccess;
  BEGIN(comm->rank, ncclGroupEnd);
  comm->launch(std::move(parts));
  return kNcclInProgress;
}
EXPORT NcclResult ncclSend(const void* memory, std::size_t count, int, int peer, NcclComm comm,
                           casync::cuda::Stream stream) {
  return add(comm, memory, {true, peer, nullptr, count, stream}, "ncclSend");
}
EXPORT NcclResult ncclRecv(void* memory, std::size_t count, int, int peer, NcclComm comm, casync::cuda::Stream stream) {
  return add(comm, memory, {false, peer, nullptr, count, stream}, "ncclRecv");
}

// --- for tests
// --------------------------------------------------------------------------------------------------------

EXPORT void standin_nccl_fail(int rank, const char* name, int n, int result) {
  const std::lock_guard lock(script().mutex);
  script().failures.erase({rank, name});
  if (n > 0) script().failures[{rank, name}] = {n, result};
}
EXPORT void standin_nccl_delay(int milliseconds) { script().delay_ms = milliseconds; }
EXPORT void standin_nccl_hang_abort(int does_hang) { script().abort_hangs = does_hang != 0; }
EXPORT int standin_nccl_groups(void) { return script().groups; }
EXPORT int standin_nccl_comms(void) { return script().comms; }
