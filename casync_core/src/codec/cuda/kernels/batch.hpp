#pragma once

#include "codec/cuda/kernels/arguments.hpp"
#include "codec/cuda/kernels/reduce.hpp"
#include "codec/cuda/kernels/units.hpp"

/// What kernels do with a unit of a gradient, or with all of its units.
///
/// `Codec` is what is generated for one choice of widths: encode(team, job, round), decode(team, job, into) and their
/// like for one unit.
namespace casync::codec::cuda {

/// For the threads of a team: its part of the scratch memory, and the facts of a unit.
template <typename Codec, typename Team>
class Share {
 public:
  CASYNC_DEVICE Share(const Team& team, const Units& units)
      : units_(units), scratch_(units.scratch + kGridBytes + team.index() * units.scratch_each) {}

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
CASYNC_DEVICE void encode_unit(const Team& team, const EncodeBatch& batch, std::int64_t unit) {
  Share<Codec, Team> share(team, batch.units);
  const std::int64_t offset = share.offset(unit);
  const bool placed = batch.at != nullptr;
  const UnitJob job{.facts = share.facts(unit),
                    .accumulated = batch.accumulated + offset,
                    .residual = batch.residual == nullptr ? nullptr : batch.residual + offset,
                    .mid = batch.mid,
                    .payload = batch.slots + (placed ? batch.at[unit] : unit * batch.slot_bytes),
                    .payload_end = batch.slots + (placed ? batch.at[unit + 1] : (unit + 1) * batch.slot_bytes),
                    .received = batch.received,
                    .scratch = share.scratch()};
  const EncodedUnit encoded = Codec::encode(team, job, batch.round);
  if (team.rank() == 0) batch.encoded[unit] = encoded;
  team.barrier();
}

template <typename Codec, typename Team>
CASYNC_DEVICE void decode_unit(const Team& team, const DecodeBatch& batch, std::int64_t unit) {
  Share<Codec, Team> share(team, batch.units);
  const DecodeJob job{.facts = share.facts(unit),
                      .payload = batch.payload + batch.at[unit],
                      .payload_end = batch.payload + batch.at[unit + 1],
                      .received = batch.received,
                      .scratch = share.scratch(),
                      .out = batch.out + share.offset(unit),
                      .accumulated = batch.accumulated == nullptr ? nullptr : batch.accumulated + share.offset(unit),
                      .divisor = batch.divisor,
                      .keep = batch.keep && (batch.lost == nullptr || *batch.lost == 0)};
  const std::int64_t used = Codec::decode(team, job, batch.into);
  if (team.rank() == 0) batch.used[unit] = used;
  team.barrier();
}

/// What this rank proposes for the whole gradient, the batch's only unit.
template <typename Codec, typename Team>
CASYNC_DEVICE void propose_unit(const Team& team, const ProposeBatch& batch, std::int64_t /*unit*/) {
  Share<Codec, Team> share(team, batch.encode.units);
  const UnitJob job{.facts = share.facts(0),
                    .accumulated = batch.encode.accumulated,
                    .mid = batch.encode.mid,
                    .scratch = share.scratch()};
  const float value = Codec::propose(team, job);
  if (team.rank() == 0) *batch.proposed = value;
  team.barrier();
}

/// Nothing follows from a value that is not finite.
template <typename Codec, typename Team>
CASYNC_DEVICE void agree_on(const Team& team, const AgreeBatch& batch, std::int64_t /*item*/) {
  if (!finite(*batch.received)) return;
  Share<Codec, Team> share(team, batch.units);
  const Facts facts = share.facts(0);
  if (team.rank() == 0) Codec::agree(facts, *batch.received);
}

/// Slots of any fill, one behind the other: where each unit's payload begins, and where the last one ends. A unit that
/// did not fit its slot has none.
template <typename Team>
CASYNC_DEVICE void place_units(const Team& team, const GatherBatch& batch, std::int64_t /*item*/) {
  const std::int64_t count = batch.encode.units.count;
  std::int64_t begin = 0;
  for (std::int64_t tile = 0; tile < count; tile += team.size()) {
    const std::int64_t unit = tile + team.rank();
    std::int64_t total = 0;
    const std::int64_t bytes = unit < count ? larger(batch.encode.encoded[unit].bytes, std::int64_t{0}) : 0;
    const std::int64_t before = team.template scan<Add>(bytes, std::int64_t{0}, total);
    if (unit < count) batch.at[unit] = begin + before;
    begin += total;
  }
  if (team.rank() == 0) batch.at[count] = begin;
}
template <typename Team>
CASYNC_DEVICE void move_unit(const Team& team, const GatherBatch& batch, std::int64_t unit) {
  const std::byte* const slot = batch.encode.slots + unit * batch.encode.slot_bytes;
  const std::int64_t begin = batch.at[unit];
  for (std::int64_t i = team.rank(); i < batch.at[unit + 1] - begin; i += team.size())
    batch.payload[begin + i] = slot[i];
}

/// The same for payloads that came one behind the other; a size is known from what a unit begins with.
template <typename Codec, typename Team>
CASYNC_DEVICE void locate_units(const Team& team, const LocateBatch& batch, std::int64_t /*item*/) {
  if (team.rank() != 0) return;
  Share<Codec, Team> share(team, batch.decode.units);
  const std::byte* const payload = batch.decode.payload;
  batch.at[0] = 0;
  for (std::int64_t unit = 0; unit < batch.decode.units.count; ++unit) {
    const DecodeJob job{
        .facts = share.facts(unit), .payload = payload + batch.at[unit], .payload_end = payload + batch.bytes};
    batch.at[unit + 1] = batch.at[unit] + larger(Codec::size(job), std::int64_t{0});
  }
}

}  // namespace casync::codec::cuda
