#pragma once

#include "codec/unit.hpp"

/// What kernels are launched with. Pointers are to device memory, and what launches a kernel finds them with
/// `visit_pointers`, which calls `f` with a reference to each.
namespace casync::codec::cuda {

/// The units of one gradient.
struct Units {
  Facts facts;                          ///< of the gradient; its pointers are not used, but for these:
  Parameter parameters[16]{};           ///< in the file's order
  float* state[8]{};                    ///< in the file's order, each from the gradient's first element on
  const std::int64_t* begin = nullptr;  ///< the first element of each unit, and the end of the last
  std::int64_t count = 0;
  std::int64_t longest = 0;  ///< elements of the longest unit
  int teams = 1;             ///< units that are worked on at a time, at most; each has scratch memory of its own
  std::byte* scratch = nullptr;
  std::int64_t scratch_each = 0;  ///< of a team; set by the caller (device_kernels.hpp)
};
template <typename F>
void visit_pointers(Units& units, const F& f) {
  for (float*& state : units.state) f(state);
  f(units.begin);
  f(units.scratch);
}
static_assert(sizeof(Units) == 272, "visit_pointers lists each pointer");

/// Arrays of elements begin with the batch's first one.
struct EncodeBatch {
  Units units;
  int round = 0;
  const float* accumulated = nullptr;
  float* residual = nullptr;
  float mid = 1.0F;
  const std::byte* received = nullptr;
  std::byte* slots = nullptr;        ///< a payload for each unit
  const std::int64_t* at = nullptr;  ///< where each begins, and the end of the last; null: each at so many bytes:
  std::int64_t slot_bytes = 0;
  EncodedUnit* encoded = nullptr;  ///< of each unit
};
template <typename F>
void visit_pointers(EncodeBatch& batch, const F& f) {
  visit_pointers(batch.units, f);
  f(batch.accumulated);
  f(batch.residual);
  f(batch.received);
  f(batch.slots);
  f(batch.at);
  f(batch.encoded);
}
static_assert(sizeof(EncodeBatch) == 344, "visit_pointers lists each pointer");

/// The same, of arrays and payloads.
struct DecodeBatch {
  Units units;
  Into into = Into::set;
  const std::byte* payload = nullptr;
  const std::int64_t* at = nullptr;  ///< where in it each unit's begins, and the end of the last
  const std::byte* received = nullptr;
  float* out = nullptr;
  const float* accumulated = nullptr;  ///< where D is taken off
  float divisor = 1.0F;
  bool keep = false;
  const std::int32_t* lost = nullptr;  ///< if it is not zero then, nothing is kept; may be null
  std::int64_t* used = nullptr;        ///< bytes of each unit, -1 if they cannot be this codec's
};
template <typename F>
void visit_pointers(DecodeBatch& batch, const F& f) {
  visit_pointers(batch.units, f);
  f(batch.payload);
  f(batch.at);
  f(batch.received);
  f(batch.out);
  f(batch.accumulated);
  f(batch.lost);
  f(batch.used);
}
static_assert(sizeof(DecodeBatch) == 344, "visit_pointers lists each pointer");

/// Takes payloads out of their slots.
struct GatherBatch {
  EncodeBatch encode;
  std::int64_t* at = nullptr;    ///< as in DecodeBatch; `place` writes it, `move` reads it
  std::byte* payload = nullptr;  ///< one behind the other
};
template <typename F>
void visit_pointers(GatherBatch& batch, const F& f) {
  visit_pointers(batch.encode, f);
  f(batch.at);
  f(batch.payload);
}
static_assert(sizeof(GatherBatch) == 360, "visit_pointers lists each pointer");

/// Finds where each unit's payload begins, where the batch's `at` is not known: units behind one that cannot be this
/// codec's are empty.
struct LocateBatch {
  DecodeBatch decode;
  std::int64_t bytes = 0;      ///< of all payloads
  std::int64_t* at = nullptr;  ///< as in DecodeBatch
};
template <typename F>
void visit_pointers(LocateBatch& batch, const F& f) {
  visit_pointers(batch.decode, f);
  f(batch.at);
}
static_assert(sizeof(LocateBatch) == 360, "visit_pointers lists each pointer");

/// A rank's part of what all agree on, of the whole gradient as the batch's only unit.
struct ProposeBatch {
  EncodeBatch encode;
  float* proposed = nullptr;
};
template <typename F>
void visit_pointers(ProposeBatch& batch, const F& f) {
  visit_pointers(batch.encode, f);
  f(batch.proposed);
}
static_assert(sizeof(ProposeBatch) == 352, "visit_pointers lists each pointer");

/// What follows from the aggregated value.
struct AgreeBatch {
  Units units;
  const float* received = nullptr;
};
template <typename F>
void visit_pointers(AgreeBatch& batch, const F& f) {
  visit_pointers(batch.units, f);
  f(batch.received);
}
static_assert(sizeof(AgreeBatch) == 280, "visit_pointers lists each pointer");

}  // namespace casync::codec::cuda
