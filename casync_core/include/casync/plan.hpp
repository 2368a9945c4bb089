#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "casync/types.hpp"

/// How one gradient is synchronised: data only. One rank decides (planner/), all ranks build the same workflow from it.
namespace casync {

/// The largest K (GradientPlan::partitions); the least is 1. A workflow numbers its slots with 16 bits.
inline constexpr std::uint32_t kPartitionLimit = 1U << 16U;

/// COVAP's coefficient (section III-D): what waits of a gradient is multiplied by it in every step. Below 1 that part
/// is lost; so it is a warm-up.
struct Coefficient {
  double init = 1;                  ///< of step 0; from 0 to 1
  std::uint32_t ascend_steps = 50;  ///< after so many steps it rises
  double ascend_range = 0.1;        ///< by this, until it is 1
  friend auto operator<=>(const Coefficient&, const Coefficient&) = default;
  /// In this step of the gradient.
  float at(std::uint32_t step) const {
    return static_cast<float>(std::min(init + step / ascend_steps * ascend_range, 1.0));
  }
};

/// The plan of one gradient.
struct GradientPlan {
  std::string topology = "direct";  ///< the name of a route
  std::string codec = "none";       ///< a spec that make_codec accepts
  std::uint32_t partitions = 1;     ///< K, cut on the codec's boundaries; fewer when the gradient has fewer units
  std::uint32_t first_owner = 0;    ///< partition p is owned by member (first_owner + p) mod N
  std::uint32_t period = 1;         ///< the part of it of turn (s - offset) % period goes in the gradient's step s. Of
  std::uint32_t offset = 0;         ///< the rest the result is zero, and what is not sent joins the residual
  Coefficient coefficient{};        ///< of what waits, where the period is longer than 1
  std::optional<std::int32_t> priority{};  ///< before gradients of a lower one; nothing: as the signature says
  bool on_host = false;                    ///< computed on the host, also where the gradient is on a device
  std::string tensor;                      ///< what it was made for, as tensor_of says it; empty: not known
  std::uint32_t epoch = 0;                 ///< plans of one epoch hold together; a re-plan starts the next
  std::string reason;                      ///< why, in words, with the predicted times
  std::uint32_t until = 0;  ///< the gradient's step from which another plan holds; 0: this one holds for good
  bool on_trial = false;    ///< ways to synchronise are still being compared, and another plan follows
  // What the planner went by; 0 where it had no such number.
  double predicted_s = 0;           ///< from ready to synchronised; alone, or among the others if the model was planned
  double uncompressed_s = 0;        ///< the same with codec `none`, by the best route for that
  std::uint64_t payload_bytes = 0;  ///< as one rank encodes it; if it varies, as measured, or else at most
  double measured_inter_s_per_byte = 0;   ///< a link between hosts; these four are measured costs, not priors
  double measured_intra_s_per_byte = 0;   ///< a link between ranks of one host
  double measured_encode_s_per_byte = 0;  ///< the plan's codec, per raw byte
  double measured_decode_s_per_byte = 0;  ///< likewise
  friend bool operator==(const GradientPlan&, const GradientPlan&) = default;
};

/// Why there can be no such coefficient, as a clause; nothing if there can.
std::optional<std::string> why_not(const Coefficient& coefficient);

/// Whether another plan must follow in this step of the gradient.
inline bool is_over(const GradientPlan& plan, std::uint32_t step) { return plan.until > 0 && step >= plan.until; }

/// Which part of a gradient goes in this step of it.
inline std::uint32_t turn_of(const GradientPlan& plan, std::uint32_t step) {
  return (step % plan.period + plan.period - plan.offset) % plan.period;
}

/// The partitions that go in turn `turn` of `period`, which are neighbours: about as many in each turn. A gradient of
/// fewer partitions than there are turns is not divided; all of it goes in turn 0.
inline Range partitions_of(std::uint32_t turn, std::uint32_t period, std::uint32_t partitions) {
  if (partitions < period) return {0, turn == 0 ? partitions : 0};
  const auto begin_of = [&](std::int64_t t) { return (t * partitions + period - 1) / period; };
  return {begin_of(turn), begin_of(std::int64_t{turn} + 1)};
}

/// What a partition's payload aims at, for sessions and for what predicts them: it bounds memory, and lets links start
/// early. `casync.config.Config` says the same to Python programs.
inline constexpr std::size_t kPartitionBytes = 256 << 10;
/// Messages up to this travel inside a head, where the transport's heads have room for them.
inline constexpr std::size_t kInlineBytes = 12 << 10;
/// Memory for payloads and partial sums, on each rank.
inline constexpr std::size_t kPoolBytes = 24 << 20;
/// Gradients of fewer elements go uncompressed, unless a rule says otherwise.
inline constexpr std::int64_t kMinNumel = 4096;

/// What an operation on a named tensor is, as every rank must state it alike. The unit of negotiation and of the plan
/// cache.
struct Signature {
  OpKind kind = OpKind::allreduce;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::average;
  Shape shape;              ///< as codecs see it; an allgather's rows are this rank's own and may differ between ranks
  std::int32_t root = 0;    ///< broadcast only
  float prescale = 1.0F;    ///< what the adaptor multiplies every contribution by: ranks must agree on it
  float postscale = 1.0F;   ///< and on what it multiplies the result by
  std::string dims;         ///< the user's shape: "(64, 3, 7)", an allgather's "(*, 3, 7)"; alike on all ranks
  std::string compression;  ///< a codec spec, "auto(spec, ...)", "covap(spec, interval=4)", or one in "always(...)"
  std::string topology;     ///< "auto" or a topology's name
  MemoryKind memory = MemoryKind::host;  ///< of the tensor, on every rank
  std::int32_t priority = 0;             ///< tensors of a higher one go first
  std::uint32_t seed = 0;                ///< of the codecs' random numbers and first states, beside the name
  friend bool operator==(const Signature&, const Signature&) = default;
};

/// The priority of a tensor: the plan's if the plan has one, else the signature's.
inline std::int32_t priority_of(const GradientPlan& plan, const Signature& signature) {
  return plan.priority.value_or(signature.priority);
}

/// A tensor in a plan file: "float32 (64, 3, 7)".
std::string tensor_of(const Signature& signature);

}  // namespace casync
