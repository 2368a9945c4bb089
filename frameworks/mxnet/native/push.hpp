#pragma once

#include <casync/c_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine.hpp"

extern "C" {

/// One operation of a push, as frameworks/mxnet/engine.py fills it.
struct casync_mxnet_operation {
  std::uint32_t tensor;  ///< what `define` gave
  std::int32_t is_told;  ///< whether the four terms at the end are news for the codec
  void* input;           ///< an NDArray
  void* output;          ///< another one, or null: the input is the output
  std::int64_t
      gathered;       ///< of an allgather and an alltoall, whose result is copied: how many bytes it must have; else -1
  std::int64_t rows;  ///< as those of casync_operation
  const std::int64_t* splits;
  std::size_t ranks;
  float lr;
  float momentum;
  float loss_scale;
  std::int32_t nesterov;
};
}

namespace casync::mxnet {

/// Operations that MXNet's engine starts together, when it has computed all that they read and nobody reads what they
/// write; their arrays are free again when the last one is over.
///
/// The engine's thread submits and leaves. CaSync's thread, which ends the last operation, tells the engine. Neither
/// waits, and neither takes the GIL.
class Push {
 public:
  /// `session` is the one that made the operations' tensors: if the process set has another by then, they are refused.
  Push(const casync_c_api& casync, const Engine& engine, std::int32_t process_set, const void* session,
       std::span<const casync_mxnet_operation> operations);

  /// Gives the engine the push, which owns itself from now on. False: `Engine::error_text` says why.
  static bool give(Push* push, int priority, const char* name);

 private:
  struct Operation {
    Push* push;
    casync_mxnet_operation given;
    Shared input;
    Shared output;
    std::vector<std::int64_t> splits;
  };

  static void run(void* context, void* on_complete, void* push);
  static void completed(void* operation, const casync_outcome* outcome);

  void start();
  void submit(casync_session* session, Operation& operation, bool more);
  void* address(const Shared& array);
  void fail(const std::string& text);
  void ended();

  const casync_c_api& casync_;
  const Engine& engine_;
  const std::int32_t process_set_;
  const void* const session_;
  std::deque<Operation> operations_;
  OnComplete on_complete_;
  std::atomic<std::size_t> left_;  ///< operations, and `start` itself, during which the push must not go
  std::mutex mutex_;               ///< guards error_
  std::string error_;              ///< the first that ended one
};

}  // namespace casync::mxnet
