#pragma once

#include "codec/cuda/kernels/batch.hpp"
#include "codec/cuda/kernels/team.hpp"

/// From the programs of a codec to launches on a stream: what generated tables are made of. Nothing in the runtime
/// calls them yet; `casync compll show FILE --target cuda` shows the code, tests compile it and hold it to the CPU's
/// bytes.
namespace casync::codec::cuda {

/// The functions of one codec for one choice of widths. They launch and return; what a file has no use for is null.
struct UnitLaunchers {
  std::int64_t (*scratch_bytes)(const Units& units) =
      nullptr;  ///< of `units.scratch`, enough for each of the functions
  Status (*encode)(const EncodeBatch& batch, Stream stream) = nullptr;
  Status (*decode)(const DecodeBatch& batch, Stream stream) = nullptr;
  /// Takes payloads out of their slots: one behind the other into `payload`, `at` as in DecodeBatch.
  Status (*gather)(const EncodeBatch& batch, std::int64_t* at, std::byte* payload, Stream stream) = nullptr;
  /// Where each unit's payload begins among `bytes` bytes of a batch, where its `at` is not known: units behind one
  /// that cannot be this codec's are empty.
  Status (*locate)(const DecodeBatch& batch, std::int64_t bytes, std::int64_t* at, Stream stream) = nullptr;
  /// A rank's part of what all agree on, of the whole gradient as one unit; and what follows from the aggregated value.
  Status (*propose)(const EncodeBatch& batch, float* proposed, Stream stream) = nullptr;
  Status (*agree)(const Units& units, const float* received, Stream stream) = nullptr;
};

template <typename Codec>
struct EncodeWork {
  EncodeBatch batch;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    encode_units<Codec>(team, batch);
  }
};
template <typename Codec>
struct DecodeWork {
  DecodeBatch batch;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    decode_units<Codec>(team, batch);
  }
};
struct PlaceWork {
  EncodeBatch batch;
  std::int64_t* at;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    place_units(team, batch.encoded, batch.units.count, at);
  }
};
struct MoveWork {
  EncodeBatch batch;
  const std::int64_t* at;
  std::byte* payload;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    move_units(team, batch, at, payload);
  }
};
template <typename Codec>
struct LocateWork {
  DecodeBatch batch;
  std::int64_t bytes;
  std::int64_t* at;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    locate_units<Codec>(team, batch, bytes, at);
  }
};
template <typename Codec>
struct ProposeWork {
  EncodeBatch batch;
  float* proposed;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    propose_unit<Codec>(team, batch, proposed);
  }
};
template <typename Codec>
struct AgreeWork {
  Units units;
  const float* received;
  template <typename Team>
  CASYNC_DEVICE void operator()(const Team& team) const {
    agree_on<Codec>(team, units, received);
  }
};

template <typename Team, typename Work>
Status launch_on(const Units& units, const Work& work, std::int64_t teams, Stream stream) {
  return launch<Team>(work, teams, reinterpret_cast<std::int64_t*>(units.scratch), stream);
}
inline std::int64_t teams_of(const Units& units) { return units.count < units.teams ? units.count : units.teams; }

/// Of one team.
template <typename Codec>
std::int64_t scratch_each(const Units& units, int arrays, int reductions) {
  Facts facts = units.facts;
  facts.parameters = units.parameters;
  facts.n = units.longest;
  return scratch_of(Codec::room_of(facts), arrays, reductions);
}
template <typename Codec>
std::int64_t scratch_bytes(const Units& units) {
  const std::int64_t all = teams_of(units) * scratch_each<Codec>(units, Codec::kArrays, Codec::kReductions);
  const std::int64_t one = scratch_each<Codec>(units, Codec::kProposeArrays, Codec::kProposeReductions);
  return kTotals + (all > one ? all : one);
}
template <typename Codec, typename Batch>
Batch with_scratch(Batch batch) {
  batch.units.scratch_each = scratch_each<Codec>(batch.units, Codec::kArrays, Codec::kReductions);
  return batch;
}

template <typename Codec>
Status encode(const EncodeBatch& batch, Stream stream) {
  return launch_on<typename Codec::UnitTeam>(batch.units, EncodeWork<Codec>{with_scratch<Codec>(batch)},
                                             teams_of(batch.units), stream);
}
template <typename Codec>
Status decode(const DecodeBatch& batch, Stream stream) {
  return launch_on<typename Codec::UnitTeam>(batch.units, DecodeWork<Codec>{with_scratch<Codec>(batch)},
                                             teams_of(batch.units), stream);
}
inline Status gather(const EncodeBatch& batch, std::int64_t* at, std::byte* payload, Stream stream) {
  const Status status = launch_on<BlockTeam<512>>(batch.units, PlaceWork{batch, at}, 1, stream);
  if (status != Status{}) return status;
  return launch_on<BlockTeam<512>>(batch.units, MoveWork{batch, at, payload}, teams_of(batch.units), stream);
}
template <typename Codec>
Status locate(const DecodeBatch& batch, std::int64_t bytes, std::int64_t* at, Stream stream) {
  return launch_on<BlockTeam<32>>(batch.units, LocateWork<Codec>{batch, bytes, at}, 1, stream);
}
template <typename Codec>
Status propose(const EncodeBatch& batch, float* proposed, Stream stream) {
  return launch_on<GridTeam>(batch.units, ProposeWork<Codec>{batch, proposed}, 1, stream);
}
template <typename Codec>
Status agree(const Units& units, const float* received, Stream stream) {
  return launch_on<BlockTeam<32>>(units, AgreeWork<Codec>{units, received}, 1, stream);
}

}  // namespace casync::codec::cuda
