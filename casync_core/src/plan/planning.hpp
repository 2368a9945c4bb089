#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/plan.hpp"

namespace casync {

/// What a measured time is the cost of. Numbers are in event logs and on the wire: append only.
enum class CostKind : std::uint8_t {
  encode = 0,            ///< of a codec, per raw byte
  decode = 1,            ///< of a codec, per raw byte
  inter = 2,             ///< a link between hosts: what came in by it
  intra = 3,             ///< a link between ranks of one host: likewise
  device_encode = 4,     ///< of a codec on a device, per raw byte
  device_decode = 5,     ///< likewise
  copy = 6,              ///< between memory of a device and of its host, one way
  inter_round_trip = 7,  ///< a short message to a rank of another host, and its answer; no bytes are told
  intra_round_trip = 8,  ///< likewise, of this host
  inter_message = 9,     ///< to hand a message for another host to the transport
  intra_message = 10,    ///< likewise, for this host
  inter_processor = 11,  ///< what a processor does for bodies between hosts: per byte that came in
  operation = 12,        ///< what the runtime does for one of the program's, bodies left out; `bytes`: messages sent
};

/// What a call of a codec was timed on; a later one says more of what it costs.
enum class Basis : std::uint8_t {
  scratch,   ///< random numbers, when a tensor was defined
  copy,      ///< parts of a gradient, while the program computes; nothing was sent
  gradient,  ///< a gradient
};

/// One cost that was measured on this rank.
struct Measurement {
  CostKind kind = CostKind::encode;
  std::string_view codec;  ///< canonical spec; empty for links
  double bytes = 0;
  double seconds = 0;
  Basis basis = Basis::gradient;
};

/// How long the payloads are that a codec made of a gradient on this rank.
struct EncodedSize {
  std::string_view tensor;
  std::string_view codec;  ///< canonical spec
  double tensor_bytes = 0;
  double raw_bytes = 0;      ///< that were encoded: a part of the tensor, perhaps
  double payload_bytes = 0;  ///< of all rounds
  bool of_trial = false;     ///< on a copy of the gradient, and nothing was sent
};

/// When a gradient was submitted on this rank, in seconds from the step's first one on.
struct ReadyGradient {
  std::string_view tensor;
  double tensor_bytes = 0;
  double ready_s = 0;   ///< without what the thread waited for a processor, or did for the runtime
  double worked_s = 0;  ///< for how much of that the thread was on a processor
};

/// A step of one rank that is over, in seconds.
struct Stepped {
  double predicted_s = 0;  ///< for its gradients, each alone, in all
  double measured_s = 0;   ///< while at least one of them was under way
  double rest_s = 0;       ///< from the end of the last one to the next step's first
};

/// Something to compute for the planning that takes longer than the thread that drives may be held up. What it needs is
/// its own, so it may run on any thread while the planning goes on.
class PlanWork {
 public:
  virtual ~PlanWork() = default;
  virtual void run() = 0;
};

/// Where plans come from. It stands beside the Engine: whoever drives that asks here when it wants plans. Pure: what
/// was measured enters by calls, and equal calls give equal plans. Every rank has one; that of the root plans. One
/// thread at a time.
///
/// Plans are made when a tensor is agreed on (`plan`), and may be made anew each time when every rank has told what
/// things cost there (`re_plan`), and while ways to synchronise the model are compared (`step_began`). A plan that
/// holds until a certain step is followed by another one in that step. What takes long is handed out (`work`), and
/// until it has come back (`worked`) the plans in use stay.
class Planning {
 public:
  virtual ~Planning() = default;

  /// A tensor was registered here. Returns the codecs that are to be timed; the answers come by `measured`.
  virtual std::vector<std::string> define(const std::string& /*name*/, const Signature& /*signature*/) { return {}; }
  /// A tensor that was registered here is forgotten: it was not used for long.
  virtual void forget(const std::string& /*name*/, const Signature& /*signature*/) {}
  /// Whether measurements are wanted. Only `define` and `costs` change that.
  virtual bool measuring() const { return false; }
  virtual void measured(const Measurement& /*measurement*/) {}
  virtual void encoded(const EncodedSize& /*size*/) {}
  /// A gradient was submitted.
  virtual void ready(const ReadyGradient& /*gradient*/) {}
  /// Asked at each submit while measuring: the codecs to be tried on a copy of this very gradient. The answers come
  /// by `measured` and `encoded`.
  virtual std::vector<std::string> to_try(const std::string& /*name*/, const Signature& /*signature*/,
                                          std::uint64_t /*submits*/) {
    return {};
  }
  /// A step is over.
  virtual void stepped(const Stepped& /*step*/) {}
  /// Asked at each submit while measuring, with how often that name was submitted: this rank's costs for the root, when
  /// there is enough.
  virtual std::optional<std::vector<std::byte>> costs(const Signature& /*signature*/, std::uint64_t /*submits*/) {
    return std::nullopt;
  }

  /// A step begins: a tensor is submitted to be reduced that was submitted in the step before. `counts`: the one before
  /// was like others, with all ranks at work. Returns whether plans have changed, for which operations then ask again.
  virtual bool step_began(Nanoseconds /*now*/, bool /*counts*/) { return false; }
  /// No more steps will come.
  virtual void closing() {}

  /// Root: the plan of a newly agreed tensor from step `step` on.
  virtual GradientPlan plan(const std::string& name, const Signature& signature, std::uint32_t step) = 0;
  /// Root: what `costs` returned on `member`. Throws CorruptPayload for other bytes.
  virtual void costs_of(std::uint32_t /*member*/, std::span<const std::byte> /*costs*/) {}
  /// Root: what is to be computed before plans can change, after the costs of the last rank; null: nothing.
  virtual std::unique_ptr<PlanWork> work() { return nullptr; }
  /// Root: what is to be computed before `plan` is asked for this tensor; null: nothing.
  virtual std::unique_ptr<PlanWork> work_for(const std::string& /*name*/, const Signature& /*signature*/,
                                             std::uint32_t /*step*/) {
    return nullptr;
  }
  /// Root: that work has run. Returns whether plans have changed, for which operations then ask again.
  virtual bool worked(PlanWork& /*work*/) { return false; }
  /// Root: the plan from step `step` on of a tensor that has plan `current`; nothing if it stays.
  virtual std::optional<GradientPlan> re_plan(const std::string& /*name*/, const Signature& /*signature*/,
                                              const GradientPlan& /*current*/, std::uint32_t /*step*/) {
    return std::nullopt;
  }
};

}  // namespace casync
