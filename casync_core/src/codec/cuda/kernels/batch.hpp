#pragma once

#include "codec/cuda/kernels/reduce.hpp"
#include "codec/cuda/kernels/units.hpp"

/// A batch of units of one gradient, as launchers and the programs of units see it. All pointers are to device memory.
///
/// `Codec` is what is generated for one choice of widths: encode(team, job, round), decode(team, job, into) and their
/// like for one unit.
namespace casync::codec::cuda {

struct Units {
  Facts facts;                          ///< of the gradient; its pointers are not used, but for these:
  Parameter parameters[16]{};           ///< in the file's order
  float* state[8]{};                    ///< in the file's order, each from the gradient's first element on
  const std::int64_t* begin = nullptr;  ///< the first element of each unit, and the end of the last
  std::int64_t count = 0;
  std::int64_t longest = 0;  ///< elements of the longest unit
  int teams = 1;             ///< units that are worked on at a time, at most; each has scratch memory of its own
  std::byte* scratch = nullptr;
  std::int64_t scratch_each = 0;  ///< of a team; set by the launchers
};

/// Arrays of elements begin with the batch's first one.
struct EncodeBatch {
  Units units;
  int round = 0;
  const float* accumulated = nullptr;
  float* residual = nullptr;
  float mid = 1.0F;
  const float* received = nullptr;
  std::byte* slots = nullptr;  ///< a payload for each unit
  std::int64_t slot_bytes = 0;
  EncodedUnit* encoded = nullptr;  ///< of each unit
};

struct DecodeBatch {
  Units units;
  Into into = Into::set;
  const std::byte* payload = nullptr;
  const std::int64_t* at = nullptr;  ///< where in it each unit's begins, and the end of the last
  const float* received = nullptr;
  float* out = nullptr;
  const float* accumulated = nullptr;  ///< where D is taken off
  float divisor = 1.0F;
  bool keep = false;
  std::int64_t* used = nullptr;  ///< bytes of each unit, -1 if they cannot be this codec's
};

/// The front of the scratch memory is for totals of blocks (team.hpp).
constexpr std::int64_t kTotals = 1024 * static_cast<std::int64_t>(sizeof(std::int64_t));

/// For the threads of a team: its part of the scratch memory, and the facts of a unit.
template <typename Codec, typename Team>
class Share {
 public:
  CASYNC_DEVICE Share(const Team& team, const Units& units)
      : units_(units), scratch_(units.scratch + kTotals + team.index() * units.scratch_each) {}

  CASYNC_DEVICE std::byte* scratch() const { return scratch_; }
  CASYNC_DEVICE std::int64_t offset(std::int64_t unit) const { return units_.begin[unit] - units_.begin[0]; }
  CASYNC_DEVICE Facts facts(std::int64_t unit) {
    const std::int64_t begin = units_.begin[unit];
    for (int i = 0; i < Codec::kStates; ++i)
      state_[i] = units_.state[i] + ((Codec::kStatesPerElement >> i & 1U) != 0 ? begin : 0);
    Facts facts = units_.facts;
    facts.parameters = units_.parameters;
    facts.state = state_;
    facts.n = units_.begin[unit + 1] - begin;
    facts.key.coordinate = static_cast<std::uint64_t>(begin);
    return facts;
  }

 private:
  const Units& units_;
  std::byte* scratch_;
  float* state_[8]{};
};

template <typename Codec, typename Team>
CASYNC_DEVICE void encode_units(const Team& team, const EncodeBatch& batch) {
  Share<Codec, Team> share(team, batch.units);
  for (std::int64_t unit = team.index(); unit < batch.units.count; unit += team.count()) {
    const std::int64_t offset = share.offset(unit);
    std::byte* const slot = batch.slots + unit * batch.slot_bytes;
    const UnitJob job{.facts = share.facts(unit),
                      .accumulated = batch.accumulated + offset,
                      .residual = batch.residual == nullptr ? nullptr : batch.residual + offset,
                      .mid = batch.mid,
                      .payload = slot,
                      .payload_end = slot + batch.slot_bytes,
                      .received = batch.received,
                      .scratch = share.scratch()};
    const EncodedUnit encoded = Codec::encode(team, job, batch.round);
    if (team.rank() == 0) batch.encoded[unit] = encoded;
    team.barrier();
  }
}

template <typename Codec, typename Team>
CASYNC_DEVICE void decode_units(const Team& team, const DecodeBatch& batch) {
  Share<Codec, Team> share(team, batch.units);
  for (std::int64_t unit = team.index(); unit < batch.units.count; unit += team.count()) {
    const DecodeJob job{.facts = share.facts(unit),
                        .payload = batch.payload + batch.at[unit],
                        .payload_end = batch.payload + batch.at[unit + 1],
                        .received = batch.received,
                        .scratch = share.scratch(),
                        .out = batch.out + share.offset(unit),
                        .accumulated = batch.accumulated == nullptr ? nullptr : batch.accumulated + share.offset(unit),
                        .divisor = batch.divisor,
                        .keep = batch.keep};
    const std::int64_t used = Codec::decode(team, job, batch.into);
    if (team.rank() == 0) batch.used[unit] = used;
    team.barrier();
  }
}

/// What this rank proposes for the whole gradient, the batch's only unit.
template <typename Codec, typename Team>
CASYNC_DEVICE void propose_unit(const Team& team, const EncodeBatch& batch, float* proposed) {
  Share<Codec, Team> share(team, batch.units);
  const UnitJob job{
      .facts = share.facts(0), .accumulated = batch.accumulated, .mid = batch.mid, .scratch = share.scratch()};
  const float value = Codec::propose(team, job);
  if (team.rank() == 0) *proposed = value;
}

template <typename Codec, typename Team>
CASYNC_DEVICE void agree_on(const Team& team, const Units& units, const float* received) {
  Share<Codec, Team> share(team, units);
  const Facts facts = share.facts(0);
  if (team.rank() == 0) Codec::agree(facts, *received);
}

/// Slots of any fill, one behind the other: `at` tells where each unit's payload begins in `payload`, and where the
/// last one ends. A unit that did not fit its slot has none.
template <typename Team>
CASYNC_DEVICE void place_units(const Team& team, const EncodedUnit* encoded, std::int64_t count, std::int64_t* at) {
  std::int64_t begin = 0;
  for (std::int64_t tile = 0; tile < count; tile += team.size()) {
    const std::int64_t unit = tile + team.rank();
    std::int64_t total = 0;
    const std::int64_t bytes = unit < count ? larger(encoded[unit].bytes, std::int64_t{0}) : 0;
    const std::int64_t before = team.template scan<Add>(bytes, std::int64_t{0}, total);
    if (unit < count) at[unit] = begin + before;
    begin += total;
  }
  if (team.rank() == 0) at[count] = begin;
}
template <typename Team>
CASYNC_DEVICE void move_units(const Team& team, const EncodeBatch& batch, const std::int64_t* at, std::byte* payload) {
  for (std::int64_t unit = team.index(); unit < batch.units.count; unit += team.count())
    for (std::int64_t i = team.rank(); i < at[unit + 1] - at[unit]; i += team.size())
      payload[at[unit] + i] = batch.slots[unit * batch.slot_bytes + i];
}

/// The same for payloads that came one behind the other; a size is known from what a unit begins with.
template <typename Codec, typename Team>
CASYNC_DEVICE void locate_units(const Team& team, const DecodeBatch& batch, std::int64_t bytes, std::int64_t* at) {
  if (team.rank() != 0) return;
  Share<Codec, Team> share(team, batch.units);
  const std::byte* const end = batch.payload + bytes;
  at[0] = 0;
  for (std::int64_t unit = 0; unit < batch.units.count; ++unit) {
    const DecodeJob job{.facts = share.facts(unit), .payload = batch.payload + at[unit], .payload_end = end};
    at[unit + 1] = at[unit] + larger(Codec::size(job), std::int64_t{0});
  }
}

}  // namespace casync::codec::cuda
