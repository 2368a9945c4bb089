#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/types.hpp"

/// The codec contract: what the author of a compression algorithm implements, and all that the runtime knows of one.
///
/// The runtime cuts a gradient into partitions (ranges that end on `Codec::cut` boundaries) and asks a codec for one
/// thing only: to compute a `Segment`, which reads contributions in rank order, adds them in float32, and writes an
/// encoded payload, a raw result, or both. Encode, decode, merge and the owner's fused decode+merge+encode are all
/// segments:
///
///   encode         sources = {raw gradient}              payload set      residual if the codec uses feedback
///   decode         sources = {payload}                   raw_out set
///   merge          sources = {payload | raw, ...}        raw_out set
///   merge+encode   sources = {payload | raw, ...}        payload and raw_out set: raw_out receives the DECODED
///                                                        payload, so the owner ends with the bits that every other
///                                                        rank decodes
///
/// What a codec keeps of a gradient between steps it declares as state arrays; the runtime makes them, saves them with
/// the optimizer and hands them in with every segment. Segments of disjoint ranges may run at the same time. So
/// a segment writes only its own range of a per_element array. It writes other arrays only if it covers the whole
/// gradient (CodecInfo::whole).
///
/// Guarantees a codec gives: nothing is allocated per call beyond a thread-local scratch block; a call may run on any
/// thread, concurrently with others on other ranges of the same gradient; the bytes depend on the unit of statistics
/// alone, never on how the gradient was partitioned, batched or routed; decode gives the same bits with every
/// instruction set (Isa).
namespace casync {

/// How the payloads of the ranks become one.
enum class Aggregation : std::uint8_t {
  reduce,    ///< payloads merge without loss of meaning: fp16, bf16, integers, low-rank factors
  reencode,  ///< decode, mean in float32 in rank order, encode again at the owner
  gather,    ///< all payloads reach every rank and are never re-encoded
};

/// How payloads that are arrays become one, element by element, without being decoded. The decoded result is the
/// average over the contributions, so the runtime applies no 1/N.
enum class Merge : std::uint8_t {
  none,        ///< they do not: the codec adds up what it decodes
  sum,         ///< of floats, rounded to the element whenever a rank has added some of them up
  mean,        ///< the same, divided by the number of contributions at the end
  max,         ///< of floats; NaN wins
  saturating,  ///< sum of int8 that stays within -127 and 127 after each addition, so that its order matters
};

/// One exchange of payloads. The aggregated payload of round i is `Segment::previous` of round i + 1.
struct Round {
  Aggregation aggregation = Aggregation::reduce;
  Merge merge = Merge::none;
  DType element = DType::float32;  ///< of a payload that merges: float32, float16, bfloat16 or int8
  friend auto operator<=>(const Round&, const Round&) = default;
};

/// Who keeps what encoding lost.
enum class Feedback : std::uint8_t {
  none,
  wrapper,  ///< the runtime's residual: x = g + decay * e, e = x - D(x). Contractive codecs only.
  own,      ///< the codec's state arrays, which encoding writes
};

/// An array of float32 that a codec keeps of a gradient between steps; saved with the optimizer under `name`.
struct StateArray {
  std::string name;
  std::int64_t elements = 0;
  bool per_element = false;  ///< one for each element of the gradient, in its order: partitions touch disjoint parts
  bool shared = false;       ///< the same on every rank
  /// It holds what was not sent yet, in units of the gradient. When an operation is aborted, the runtime adds the
  /// decoded payload back to it.
  bool pending = false;
  friend bool operator==(const StateArray&, const StateArray&) = default;
};

/// What a codec says of itself; constant for an instance.
struct CodecInfo {
  std::string spec;  ///< canonical text, e.g. "terngrad(bits=2)"; equal text on all ranks means the same codec
  std::vector<Round> rounds;
  Feedback feedback = Feedback::none;
  float feedback_decay = 1.0F;  ///< of the runtime's residual, in each step that encodes; above 0, at most 1
  int feedback_bits = 32;       ///< in which the runtime keeps its residual of an element between steps, or 8
  bool identity = false;        ///< `none`: the payload is the gradient's own bytes, sent and received in place
  bool whole = false;           ///< encodes the gradient in one piece: its plan has one partition
  bool fixed_size = true;       ///< payload bytes == bound(); otherwise bound() is an upper limit
  std::optional<DType> cast{};  ///< payloads are the gradient's elements, cast to this dtype
  bool prescaled = false;       ///< the mean's 1/N is applied before the first encode, e.g. fp16
  bool momentum = false;  ///< takes over the optimizer's momentum: lr, momentum and nesterov of a segment are told
};

inline bool gathers(const CodecInfo& info) { return info.rounds.front().aggregation == Aggregation::gather; }

/// Whether payloads are merged as they are, and what comes of them goes on to the next round, or is decoded.
inline bool merges_payloads(const CodecInfo& info) { return info.rounds.front().merge != Merge::none; }

/// The operation by which codec `parts` merges elements of a round's payloads.
constexpr ReduceOp op_of(Merge merge) { return merge == Merge::max ? ReduceOp::max : ReduceOp::sum; }

/// Whether op Adasum works with this codec. It does if payloads are the elements themselves, in their own dtype or cast
/// to another one.
inline bool takes_adasum(const CodecInfo& info) { return info.identity || info.cast; }

/// One contribution to a segment.
struct Source {
  const void* data = nullptr;  ///< raw: elements of the gradient's dtype, already at the range's begin; else a payload
  std::size_t bytes = 0;       ///< payload length; for raw data, range.size() * size_of(dtype)
  bool raw = false;
};

/// For whom a segment draws random numbers. A worker and an owner never draw the same ones.
enum class Role : std::uint8_t { worker = 0, owner = 1 };

/// One compute task over one range of one gradient. Filled by the executor, outputs written by the codec.
struct Segment {
  // What it is about.
  Shape shape;  ///< of the whole gradient
  DType dtype = DType::float32;
  Range range;
  // Key of the random numbers.
  std::uint64_t name_hash = 0;
  std::uint32_t sequence = 0;  ///< how many times this gradient was synchronised before
  Rank rank = 0;
  Role role = Role::worker;
  std::uint8_t round = 0;
  // Inputs. Where a codec with Feedback::own encodes, it adds the payloads among the sources to its pending array. The
  // sum over the raw sources is its gradient, so its momentum is that of the rank's own gradient.
  // accumulated = sum over sources, in the order given, of (raw ? pre * value : D(payload)), in float32
  // (float64 for float64 gradients with an identity codec, exact integers for integer ones).
  std::span<const Source> sources;
  ReduceOp op = ReduceOp::sum;  ///< sum; adasum, over the whole gradient, if takes_adasum(); min, max and product only
                                ///< with an identity codec
  float pre = 1.0F;             ///< factor of raw sources
  float mid = 1.0F;   ///< factor of the accumulated value before it is encoded (1/N for a mean, by which an identity
                      ///< codec divides)
  float post = 1.0F;  ///< factor of what is written to raw_out
  std::span<const std::byte> previous;  ///< aggregated payload of the previous round; empty in round 0
  /// Residual of this rank over the range (float32, at range.begin), or null. In units of the accumulated value:
  ///   x = accumulated + decay * residual;  y = x * mid;  payload = E(y);  residual = x - D(payload) / mid
  /// `decay` is CodecInfo::feedback_decay, and its product is rounded. A unit whose x is not finite is encoded so that
  /// it decodes to NaN, and its residual stays as it was. With several rounds it is read in each and written in the
  /// last. An aborted operation finds x as residual + D(payload) / mid, and gives back what was in it, not decayed.
  float* residual = nullptr;
  /// The arrays of Codec::state, in its order, each from ITS first element on, not the range's; empty if it has none.
  std::span<float* const> state;
  std::uint32_t world = 1;  ///< contributions that are encoded apart: one of each rank, or of each host
  // Of the optimizer, for this parameter; 0 where nobody said.
  float lr = 0;
  float momentum = 0;
  bool nesterov = false;
  // Outputs.
  std::span<std::byte> payload;   ///< capacity for the encoded result, or empty when nothing is encoded
  std::size_t payload_bytes = 0;  ///< out: bytes written to `payload`
  void* raw_out = nullptr;  ///< gradient's dtype, at range.begin: post * (encoded ? D(payload) : accumulated * mid)
  bool nonfinite = false;   ///< out: some result was NaN or Inf
};

namespace codec::cuda {
class DeviceCode;
}

class Codec {
 public:
  virtual ~Codec() = default;

  virtual const CodecInfo& info() const = 0;

  /// Largest legal partition boundary <= `element`: a multiple of the unit of statistics of this shape. cut(numel) ==
  /// numel.
  virtual std::int64_t cut(const Shape& shape, std::int64_t element) const = 0;

  /// Upper limit (exact if fixed_size) of the payload of `range` in `round`, in bytes. `range` lies on boundaries.
  virtual std::size_t bound(const Shape& shape, DType dtype, const Range& range, int round) const = 0;

  /// Computes every segment, in order. Throws CorruptPayload, naming the length found and expected, for bytes that this
  /// codec did not write. Then nobody knows how far it came, so the runtime hands over one segment a call, and a
  /// failure costs no residual but that segment's (docs/internals/index.md).
  virtual void run(std::span<Segment> segments) const = 0;

  /// What it keeps of a gradient of this shape.
  virtual std::vector<StateArray> state(const Shape& /*shape*/) const { return {}; }

  /// Writes the first values of state array `index`, which are zero so far. `name_hash` is the gradient's, for random
  /// numbers.
  virtual void start(const Shape& /*shape*/, std::uint64_t /*name_hash*/, std::size_t /*index*/,
                     std::span<float> /*values*/) const {}

  /// How many values the ranks agree on before a gradient is first encoded (CompLL's `init`); 0: none.
  virtual std::int64_t agreed() const { return 0; }

  /// This rank's own part of them. `segment` has one raw source over the whole gradient and no outputs.
  virtual void propose(const Segment& /*segment*/, std::span<float> /*values*/) const {}

  /// Sets `segment.state` from the ranks' mean of what they proposed. Until then the state has the values of `start`. A
  /// gradient is encoded with those only in a step in which the mean is not finite.
  virtual void agree(const Segment& /*segment*/, std::span<const float> /*values*/) const {}

  /// Whether a gradient of this shape is compressed in its step `sequence`; where not it goes as `none`. The same on
  /// all ranks; what applies in a step applies in all later ones.
  virtual bool applies(const Shape& /*shape*/, std::uint32_t /*sequence*/) const { return true; }
  /// A step in which every codec is applied that ever is.
  static constexpr std::uint32_t kLateStep = std::numeric_limits<std::uint32_t>::max();

  /// What a GPU needs to compute it; null: only the CPU does.
  virtual const codec::cuda::DeviceCode* device_code() const { return nullptr; }
};

/// Creates a codec from its spec: `name` or `name(key=value, ...)`. Throws InvalidArgument that lists what is known.
///   make_codec("terngrad(bits=4)")
std::shared_ptr<const Codec> make_codec(std::string_view spec);

/// Names that make_codec accepts, test-only ones excluded.
std::vector<std::string> codec_names();

/// Instruction sets of the kernels. `best_isa()` is what the processor offers; tests and benchmarks may force a lower
/// one.
enum class Isa : std::uint8_t { baseline = 0, avx2 = 1, avx512 = 2 };
Isa best_isa();
Isa current_isa();
void force_isa(Isa isa);  ///< throws InvalidArgument above best_isa(); not thread-safe against running codecs

}  // namespace casync
