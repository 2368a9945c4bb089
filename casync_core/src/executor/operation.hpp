#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "casync/completion.hpp"
#include "casync/error.hpp"
#include "casync/plan.hpp"
#include "common/thread_time.hpp"
#include "engine/control.hpp"

namespace casync {

/// What a registration is to the executor: constant after it is made.
struct Definition {
  std::string name;
  Signature signature;
  std::uint64_t name_hash = 0;  ///< with the signature's seed
};

struct Staged;

/// What a codec may know of the optimizer, for one parameter.
struct OptimizerSettings {
  float lr = 0;
  float momentum = 0;
  bool nesterov = false;
  float loss_scale = 1;  ///< the factor that the loss had, and so the gradient has
};

/// One submitted operation: the user's memory on the way in, the outcome on the way out.
///
/// The submitting thread fills the first part before it hands the operation over; the progress thread fills the second
/// before it stores `done` (release), after which any thread may read it. With a completion nobody stores `done`: the
/// thread that had the role hands the operation to the session, which calls it.
struct Operation {
  const Definition* definition = nullptr;
  const void* input = nullptr;
  void* output = nullptr;            ///< null for an allgather and an alltoall, whose output the runtime makes
  std::int64_t rows = 0;             ///< allgather: this rank's rows
  std::vector<std::int64_t> splits;  ///< alltoall: this rank's rows for each member
  OptimizerSettings optimizer;
  /// The program has joined: the input is zeros, and nothing that is this rank's own changes (residual, codec state).
  bool stands_in = false;
  std::uint64_t step = 0;  ///< how often its name was submitted, this time included
  bool on_stream = false;  ///< its memory is a device's, and what computes for it runs on a stream of the device
  bool by_lane = false;    ///< what it sends goes by the lane of the device; until it begins: can go
  bool fetched = false;    ///< that is so, but by now it works on memory of the host (Stream::fetch)
  Nanoseconds submitted = 0;
  ThreadMoment submitter;  ///< what the program had had of the submitting thread; while measuring
  Nanoseconds ready = 0;   ///< of a gradient: how long after its step's beginning that was
  /// The program comes back to wait for it, or to submit more; false: nobody does, and it is urgent.
  bool awaited = true;
  std::uint32_t index = 0;   ///< of its entry in the session's handle table; if it stands in, its registration
  Staged* staged = nullptr;  ///< the session's, if the program's memory is a device's; null: it is the host's
  Completion completion;

  Status status = Status::ok;
  bool nonfinite = false;                      ///< the result, or part of what this rank computed for it
  std::vector<std::uint32_t> nonfinite_ranks;  ///< whose contribution was not finite, as far as this rank saw
  std::string text;                            ///< why it failed
  std::unique_ptr<ErrorFacts> facts;           ///< and what that is about, its ranks as members; null: nothing failed
  std::vector<std::byte> result;               ///< allgather, alltoall
  std::vector<std::int64_t> result_rows;       ///< per member: the rows of the result that it gave; join: the last one
  std::atomic<bool> done{false};
};

}  // namespace casync
