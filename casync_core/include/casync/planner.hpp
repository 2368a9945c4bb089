#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/plan.hpp"
#include "casync/types.hpp"

/// The planner: decides per gradient whether to compress it, with which codec, in how many partitions and by which
/// route (paper: section 3.3, "SeCoPa"). Pure: no clock, no I/O, no state; measured costs come in as numbers, so tests
/// call it with literals. One rank plans and tells the others.
///
///   const World world(host_of);
///   OwnerLoad load;
///   for (const auto& [name, signature] : gradients) {
///     Decision d = plan_gradient({name, signature, world, costs, options, load});
///     load = d.load;              // d.plan.reason: "auto: onebit 1.52 ms (none 9.04 ms); ps, 4 partitions of 1 MiB"
///   }
///
/// All times are seconds, all sizes bytes.
namespace casync {

// ---- Costs ----

/// A link in one direction. A transfer takes hops * latency + messages * message + bytes * seconds_per_byte. Equation 1
/// multiplies all of T_send by alpha, which would charge PS its latency 2(N-1) times: it has that many sends in a row
/// at a NIC, but two hops.
struct LinkCost {
  double latency_s = 0;  ///< from a send's start to the receiver's next task, per hop
  double seconds_per_byte = 0;
  double message_s = 0;  ///< what one message costs its sender besides its bytes
  /// Of a processor, beside the link: to send a byte and to receive one. A copy inside a host is a processor's anyway.
  double processor_s_per_byte = 0;
};

/// What a codec's calls cost, per byte of the raw gradient. Decoding includes the merge it is fused with.
struct CodecCost {
  double encode_fixed_s = 0;
  double encode_s_per_byte = 0;
  double decode_fixed_s = 0;
  double decode_s_per_byte = 0;
};

/// What was measured of one gradient, by its name in the job.
struct MeasuredGradient {
  double bytes = 0;  ///< of it, uncompressed
  /// Payload bytes per raw byte, by canonical spec, of codecs whose payloads vary in size.
  std::map<std::string, double, std::less<>> payload_share{};
  /// When backward has made it, from the step's first gradient on, if nothing hinders the thread; and for how much of
  /// that it is on a processor.
  std::optional<double> ready_s{}, worked_s{};
  friend bool operator==(const MeasuredGradient&, const MeasuredGradient&) = default;
};

/// What a job's machines cost. The values here are priors: they stand until the first steps were measured. Latency is
/// that of a sleeping receiver; bandwidths are those of 10 Gbit/s Ethernet and of a copy through shared memory.
struct CostTable {
  LinkCost inter{120e-6, 0.8e-9, 5e-6};                  ///< between hosts, per NIC
  LinkCost intra{50e-6, 0.25e-9, 5e-6};                  ///< between ranks of one host
  std::map<std::string, CodecCost, std::less<>> codecs;  ///< by canonical spec ("terngrad(bits=2)")
  /// Likewise, of those that the devices of all ranks compute.
  std::map<std::string, CodecCost, std::less<>> device_codecs;
  std::map<std::string, MeasuredGradient, std::less<>> gradients;  ///< by name; empty: nothing was measured
  double copy_s_per_byte = 0.08e-9;  ///< between a device and pinned memory of its host, one way: PCIe 3
  /// How many processors one rank has. With less than two, all that it does takes turns.
  double processors = 2;
  double operation_s = 0;    ///< of a processor: what the runtime itself does for one gradient
  double backward_work = 1;  ///< for how much of the backward pass its thread is on a processor

  /// How many times as long as alone a rank's work takes of the processors, when all ranks have work.
  double stretch() const { return processors < 1 ? 1 / processors : 1; }
  /// What takes `alone_s` of a backward pass if nobody else works takes so long when all ranks do.
  double backward_s(double alone_s) const { return alone_s * (1 - backward_work + backward_work * stretch()); }

  /// What is known of `spec`: its own entry, else its family's prior (the name before the bracket), else a cautious
  /// prior. `none` costs nothing.
  CodecCost of(std::string_view spec) const;
  /// Payload bytes for each value, of a codec whose payloads vary in size: what is usual before any was measured.
  static std::optional<double> usual_payload(std::string_view spec);
};

/// What a gradient's codec costs, and what brings the gradient to where it is computed.
struct ComputeCost {
  CodecCost codec;
  double copies_s = 0;
};
/// On a device, a gradient of `raw` bytes is copied to the host and back, unless its device computes the codec. What
/// sends elements as they are goes through the host.
ComputeCost compute_cost(const CostTable& costs, std::string_view spec, MemoryKind memory, bool sends_raw, double raw);
/// Whether a device computes it then.
bool is_computed_there(const CostTable& costs, std::string_view spec, MemoryKind memory, bool sends_raw);

/// One measurement.
struct Sample {
  double bytes = 0;
  double seconds = 0;
};
struct Line {
  double fixed_s = 0;
  double s_per_byte = 0;
};
/// Fits seconds = fixed + bytes * slope as Theil and Sen do: the slope is the median over all pairs, the intercept the
/// median of what is left. Holds while less than 29 % of the samples are outliers. Both are at least 0. Samples of one
/// size give a slope of seconds / bytes and no fixed part; no samples give zeros.
Line fit_line(std::span<const Sample> samples);

// ---- Decisions ----

/// Raw bytes from which a gradient whose codec merges payloads (none, fp16, bf16) takes the ring instead of PS. Both
/// move the same bytes, but PS has 2 hops and the ring 2(N-1); and in PS the N-1 senders to one owner collide in its
/// downlink, where in a ring every link has one sender. Measured: ResNet50's shapes on four hosts with 1 Gbit/s
/// take 1.9 s by PS and 1.4 s by ring.
inline constexpr double kRingFromBytes = 64 << 10;

struct PlannerOptions {
  std::int64_t min_numel = kMinNumel;  ///< below this many elements nothing is compressed
  double direct_limit_bytes = 1024;    ///< payloads up to this go from everyone to everyone
  double flat_limit_bytes =
      kInlineBytes;  ///< payloads up to this do not go in two levels: one more hop costs more than the bytes it saves
  double partition_bytes = kPartitionBytes;  ///< upper limit of a partition's payload
  double partition_raw_bytes = 8 << 20;      ///< upper limit of a partition's raw bytes: bounds one encode task
  double least_partition_bytes = 16 << 10;   ///< lower limit of a partition's payload, where the two above allow it
  double ring_from_bytes = kRingFromBytes;
  std::optional<std::string> topology;  ///< for gradients whose signature says "auto"
  // To count what a route costs takes long in large worlds (planner/cost/route_costs.hpp). So up to how many members
  // the plan of a whole model may have other routes than those of the rules, and up to how many lists of phases.
  std::uint32_t all_routes_up_to = 32;
  std::uint32_t lists_up_to = 16;
  std::uint32_t interval = 1;  ///< of a covap(...) that leaves it open
  std::uint32_t epoch = 0;     ///< copied into the plan
};

/// Payload bytes that each member owns so far. Empty means none.
struct OwnerLoad {
  std::vector<double> bytes;
};

/// How the members lie on hosts (planner/cost/world.hpp).
class World;

/// One way to synchronise a gradient, with the partitions that suit it best, and what it takes alone.
struct Alternative {
  std::string codec;  ///< canonical spec
  std::string topology = "direct";
  std::uint32_t partitions = 1;
  double seconds = 0;
  bool on_host = false;  ///< computed on the host, though the gradient's device could
};

struct PlanRequest {
  std::string_view name;
  const Signature& signature;
  const World& world;
  const CostTable& costs;
  const PlannerOptions& options;
  const OwnerLoad& load;
  std::uint32_t sequence = 0;        ///< the gradient's step from which the plan holds
  const Alternative* way = nullptr;  ///< what is best for the model as a whole; null: what is fastest alone
};

struct Decision {
  GradientPlan plan;
  OwnerLoad load;                         ///< with this gradient's partitions added to their owners
  double seconds = 0;                     ///< predicted for the plan
  double original_s = 0;                  ///< predicted for `none`
  std::vector<Alternative> alternatives;  ///< all that were compared, the chosen one first
};

/// Decides how one gradient is synchronised.
/// - A codec that the user names is obeyed, except below min_numel and where it does not apply (Codec::applies): if it
///   does in a later step, the plan holds until then. "auto(a, b)" chooses the fastest of a, b and none;
///   bare "auto" the fastest of none, fp16 (for wider dtypes) and onebit. A tie goes to the codec named first, `none`
///   before all. "always(...)" around any of these lifts min_numel.
/// - "covap(fp16, interval=4)" has the gradient synchronised in one step of so many, with that codec (period; whoever
///   knows the other gradients deals the offset: planner/search/assign_offsets.hpp). Below min_numel, and until the
///   codec begins, it goes in every step. Of "covap(fp16)" the options have the interval.
/// - A `way` in the request is taken as it is, in place of the fastest one.
/// - A topology that the user names is obeyed. Otherwise the first of these holds: direct for payloads up to
///   direct_limit_bytes; two_level for payloads above flat_limit_bytes if there are several hosts and one of them has
///   several ranks (not for Adasum); direct for codecs that gather; PS for codecs of several rounds or that average,
///   and for Adasum; ring as ring_from_bytes says; else PS.
/// - K minimises the predicted time over 1..4N, within the limits on a partition's size.
/// - Adasum needs the whole gradient of all ranks at one place: direct or PS, with K = 1.
/// - The first owner is chosen so that the most loaded member owns as little as possible.
/// Throws InvalidArgument, naming tensor, dtype or op, and remedy, for a codec or a covap on an integer dtype or on
/// Min, Max or Product, for a covap of a reducescatter or with Adasum, for Adasum of integers, by ring or two_level, or
/// with a codec that is no cast, for an unknown codec or topology, and for a topology that cannot carry the codec.
Decision plan_gradient(const PlanRequest& request);

/// Throws what plan_gradient would, and prices nothing.
void check_gradient(const PlanRequest& request);

/// Throws InvalidArgument, with what is known, unless `text` can be the compression of a signature: a codec's spec,
/// "auto", "auto(spec, ...)", "covap(spec, interval=4)", or one of these in "always(...)".
void check_compression(std::string_view text);

/// Whether a gradient with this compression needs the optimizer's momentum (CodecInfo::momentum). Throws
/// InvalidArgument for an auto(...) with such a codec.
bool takes_momentum(std::string_view text);

/// In one of how many steps a gradient with this compression is synchronised: 1 without "covap(...)", and where that
/// leaves it open, the most that it may be.
std::uint32_t interval_of(std::string_view text);

/// Whether a codec of this compression, or one that `auto` may choose, keeps something of a gradient between steps; or
/// what waits for a later step does.
bool keeps_state(std::string_view text);
/// Whether it is a covap(...) in which what waits counts for less at first.
bool rises(std::string_view text);

/// The codecs that a compression may become and that a GPU computes, as canonical specs; `none` is not among them: it
/// needs nothing but what one of them brings. Throws as `check_compression` does.
std::vector<std::string> device_codecs(std::string_view text);

/// One line for CASYNC_PLAN=explain: "conv1.weight (64, 3, 7, 7) float32: onebit, K=4, ps, 1.52 ms compressed, 9.04 ms
/// not; ...".
std::string explain(std::string_view name, const Signature& signature, const Decision& decision);

}  // namespace casync
