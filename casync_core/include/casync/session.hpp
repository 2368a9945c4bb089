#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casync/codec.hpp"
#include "casync/codec_state.hpp"
#include "casync/completion.hpp"
#include "casync/coordinator.hpp"
#include "casync/device_stream.hpp"
#include "casync/log.hpp"
#include "casync/metrics.hpp"
#include "casync/plan.hpp"
#include "casync/transport.hpp"
#include "casync/types.hpp"

/// A session: one rank's membership in one world. Owns everything it needs; two sessions in one process do not know of
/// each other.
namespace casync {

/// A handle's bits below these are the session's own; above them is the session's number.
inline constexpr unsigned kHandleBits = 48;

/// How devices send to each other: the best way that all ranks have; by the host; by CUDA's interprocess memory; by
/// NCCL.
inline constexpr std::array<std::string_view, 4> kDeviceLaneName{"auto", "host", "ipc", "nccl"};

struct SessionOptions {
  std::uint32_t session_tag = 0;       ///< tells the frames of two sessions apart; alike on all ranks
  std::uint16_t number = 0;            ///< a handle's bits above kHandleBits: which session of this process gave it out
  std::vector<std::uint32_t> host_of;  ///< per rank: host index
  std::vector<std::uint32_t> world;    ///< per rank: its number in the world, for errors; empty: the rank itself
  int worker_threads = 1;
  std::size_t pool_bytes = kPoolBytes;  ///< memory for payloads and partial sums
  CoordinatorOptions coordinator;
  std::int64_t min_numel = kMinNumel;  ///< smaller gradients go uncompressed
  std::size_t partition_bytes = kPartitionBytes;
  bool re_plan = false;                    ///< plan gradients anew when steps no longer take what was predicted
  std::uint32_t seed = 0;                  ///< of the codecs' random numbers; alike on all ranks
  bool deterministic = false;              ///< plan without measurements, and whatever order gradients come in
  LogLevel log_level = LogLevel::warning;  ///< messages below it are not made; plans are explained at info
  /// Plans of an earlier session, by name: they hold as they are, and their tensors are not planned again. A codec that
  /// the user names for a tensor comes before its plan here; a topology that is not the plan's is refused by `define`.
  std::vector<std::pair<std::string, GradientPlan>> fixed_plans;
  double stall_warning_s = 60;
  double timeout_s = 600;
  double peer_timeout_s = 8;
  std::string event_log;  ///< this rank's file for `casync replay`; empty: none
  /// Calls the work that a submit does on its own thread, network and small codec jobs: a binding lets go of its
  /// interpreter's lock meanwhile. Empty: it is called as it is.
  std::function<void(const std::function<void()>& work)> around_turn;
  /// The lane by which devices send to each other: one of kDeviceLaneName. Alike on all ranks.
  std::string device_lane = "auto";
  std::string
      nccl_library;  ///< NCCL of a Python package, which the loader does not find by itself; empty: there is none
};

/// What the session has cost so far.
struct SessionCounters {
  TransportCounters transport;
  std::uint64_t slot_bytes = 0;      ///< memory held for payloads and partial sums
  std::uint64_t residual_bytes = 0;  ///< memory held for residuals and codec state
  std::uint64_t pool_peak = 0;       ///< most bytes admitted at once
};

class Session {
 public:
  using Handle = std::uint64_t;

  /// `transport` null: a world of one. `log` receives stalls and plans from the thread that makes progress, and NaN and
  /// Inf where the operation is collected, or before its completion.
  Session(std::shared_ptr<Transport> transport, SessionOptions options, Log log);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const;
  int size() const;

  /// Makes known what will be submitted under `name`; the same arguments give the same number. `site` is where in the
  /// user's program. Throws InvalidArgument for what no codec or topology can do, before anything is sent. Any thread.
  ///
  /// What was not used while many others were is forgotten, unless it is outstanding: whoever names its number hears of
  /// it by an InvalidArgument, and defines it again. What codecs keep of a name stays.
  std::uint32_t define(const std::string& name, const Signature& signature, const std::string& site);
  /// Whether this number is still known. If it is, this counts as a use of it. Any thread.
  bool use(std::uint32_t registration);
  /// Whether this number is still known. This does not count as a use. Any thread.
  bool knows(std::uint32_t registration) const;

  /// What the optimizer does with this tensor's gradients from the next submit on. Learning rate and momentum are for
  /// codecs that take over the momentum. `loss_scale` is the factor that the gradients carry: what codecs keep of them
  /// is kept without it, so that it may change between steps. Any thread.
  void set_optimizer(std::uint32_t registration, float lr, float momentum, bool nesterov, float loss_scale = 1);

  /// From now on gradients on `device` that go by codec `spec` are computed there, by device code that was compiled for
  /// it: `code` of the codec, and `common`, which the first call hands over. Throws DeviceFailure, and InvalidArgument
  /// for a codec without device code or another device than before. Any
  /// thread, but no completion.
  void add_device_code(int device, const std::string& common, const std::string& spec, const std::string& code);

  /// Submits; never blocks. The memory stays alive and untouched (input) until the handle is done; input and output may
  /// be one but for a reducescatter, whose output is this rank's rows alone. `rows` is this rank's, for an allgather;
  /// `splits` its rows for each rank, for an alltoall. Throws InvalidArgument if an operation
  /// of the same name is not done yet, or was submitted just before and neither polled nor waited for. `wake` false:
  /// the caller waits at once. Any thread.
  ///
  /// On a device, which `where` names and the signature says, `input` is read when the program's stream has come to
  /// this point; see `order_after`. Throws DeviceFailure if there is no such device, or no pinned memory for it.
  Handle submit(std::uint32_t registration, const void* input, void* output, std::int64_t rows = 0, bool wake = true,
                std::vector<std::int64_t> splits = {}, const DeviceStream& where = {});

  /// The same without a handle: `completion` is called once, when the operation is done or has failed, and not if this
  /// throws. It is called on the thread that drove the turn in which the operation ended, be it the session's own, one
  /// that waits or submits, or the one that shuts down; completions of two operations may be called at the same time.
  /// No lock of ours is held, nor the GIL. The operation's name and its memory are free: the completion may submit the
  /// same tensor again. It may not wait: whatever would (`wait`, `shutdown`, `counters` and all below it but `metrics`)
  /// throws InvalidArgument there. While it runs nothing else may make progress, so it should be short. `wake` false:
  /// more is submitted at once, so there is no hurry. Any thread, completions included.
  ///
  /// After PeerFailure, Aborted and CorruptPayload the memory stays alive until shutdown, as after `collect`.
  /// The result of an operation on a device is there when the completion is called.
  void submit(std::uint32_t registration, const void* input, void* output, Completion completion, std::int64_t rows = 0,
              bool wake = true, std::vector<std::int64_t> splits = {}, const DeviceStream& where = {});

  bool done(Handle handle) const;
  /// Whether it was done before this call, which makes progress if nobody else does: for who asks again and again.
  bool poll(Handle handle);
  /// Waits for at most `timeout`; true if it is done. Without the GIL.
  bool wait(Handle handle, Nanoseconds timeout);
  /// The same for what completions set, with release, when all that the caller waits for is over.
  bool wait(const std::atomic<bool>& done, Nanoseconds timeout);
  /// What `stream`, a CUstream, gets to do from now on comes after the result of this operation, which is done, has
  /// reached its memory on the device. The program's thread does not wait for it. If the device fails here, `collect`
  /// says so. Throws InvalidArgument while the stream is being captured: then the handle stays.
  void order_after(Handle handle, void* stream);
  /// Forgets a handle that is done, and throws what went wrong: Mismatch, PeerFailure, Aborted, Timeout,
  /// CorruptPayload. False for one that is not done, which stays. An allreduce that was interrupted has left each
  /// partition of its gradient in one of three states: delivered (the output is final), given back (the residual is
  /// what it was plus the gradient), or never taken (the residual is what it was). What travels uncompressed may still
  /// be on its way from the input or into the output: after PeerFailure, Aborted or CorruptPayload that memory stays
  /// alive until shutdown.
  bool collect(Handle handle);
  /// Result of an allgather, an alltoall or a join, to be called before collect.
  Gathered take_result(Handle handle);

  /// This rank's program failed: all ranks' operations end with `why`.
  void abort(const std::string& why);
  /// In a child process after a fork, where the session is the parent's: see Transport::close_in_child.
  void close_in_child();
  /// Leaves the world. Returns after the last completion was called.
  void shutdown();

  SessionCounters counters();
  /// What the session has done so far. Any thread, at once, also while another one waits, and after shutdown.
  Metrics metrics() const;
  /// The plan of a registration, once agreed; null before. A codec that was left to "auto" is planned again, once, from
  /// what was measured in the first runs; such a plan has epoch 1.
  std::unique_ptr<GradientPlan> plan(std::uint32_t registration);
  /// The plans of all allreduced tensors that are agreed on, by name: what `fixed_plans` takes.
  std::vector<std::pair<std::string, GradientPlan>> plans();
  /// Writes what this rank does from now on to `path`, as a Chrome trace (executor/measure/timeline.hpp), in
  /// place of an earlier one. Throws InvalidArgument if it cannot be written. Any thread.
  void start_timeline(const std::string& path, bool mark_cycles);
  void stop_timeline();
  /// As `fixed_plans`, from now on: of tensors that are not agreed on yet, and of those whose codec was left to "auto",
  /// from their next run on that waits for a start. The same plans on all ranks, at one point of their programs.
  /// Throws InvalidArgument, as `define` does, for a plan that a defined tensor does not fit.
  void fix_plans(const std::vector<std::pair<std::string, GradientPlan>>& plans);
  /// Names of gradients that have a residual, and their residuals (copies). Waits for nothing: call when nothing is
  /// outstanding.
  std::vector<std::string> residual_names();
  FloatArray residual(const std::string& name);
  void set_residual(const std::string& name, std::span<const float> values);
  /// The same for the state of codecs and the steps that are counted, of all gradients that a codec was or will be used
  /// for. `set_state` may hold some of the arrays only: the others start anew when
  /// the gradient is next submitted; and all do if its codec is then another one. Throws InvalidArgument, naming tensor
  /// and array, if a tensor of this name is defined and the state does not fit it; so does a later `define`.
  std::vector<std::string> state_names();
  CodecState state(const std::string& name);
  void set_state(const std::string& name, CodecState state);
  /// Residual and state of `name` are gone, and start anew when they are next needed. Throws InvalidArgument, as the
  /// setters do, while an operation of this name is outstanding.
  void forget(const std::string& name);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace casync
