#pragma once

#include "codec/cuda/kernels/arrays.hpp"
#include "codec/cuda/kernels/reduce.hpp"
#include "codec/cuda/kernels/scratch.hpp"
#include "codec/unit.hpp"

/// What code generated for a unit needs besides single operations: the gradient, scratch memory, payloads, results.
namespace casync::codec::cuda {

// --- the gradient

/// Element i of y.
CASYNC_DEVICE float gradient(const UnitJob& job, std::int64_t i) {
  const float value = job.accumulated[i];
  return (job.residual == nullptr ? value : value + job.residual[i]) * job.mid;
}
/// The same at an index that is held inside of the unit.
CASYNC_DEVICE float gradient_at(const UnitJob& job, std::int32_t i) {
  if (job.facts.n == 0) return 0.0F;
  return gradient(job, smaller(larger(i, 0), static_cast<std::int32_t>(job.facts.n - 1)));
}

/// What element i of y is made of, to the residual. From then on the same functions read it there.
CASYNC_DEVICE void leave(const UnitJob& job, std::int64_t i) {
  if (job.residual != nullptr) job.residual[i] = job.accumulated[i] + job.residual[i];
}
CASYNC_DEVICE float gradient_left(const UnitJob& job, std::int64_t i) {
  return (job.residual == nullptr ? job.accumulated[i] : job.residual[i]) * job.mid;
}
CASYNC_DEVICE float gradient_at_left(const UnitJob& job, std::int32_t i) {
  if (job.facts.n == 0) return 0.0F;
  return gradient_left(job, smaller(larger(i, 0), static_cast<std::int32_t>(job.facts.n - 1)));
}

template <typename Team, typename Element>
CASYNC_DEVICE bool all_finite(const Team& team, std::int64_t length, const Element& element) {
  bool lost = false;
  for (std::int64_t i = team.rank(); i < length; i += team.size()) lost |= !finite(element(i));
  return !team.any(lost);
}
template <typename Team>
CASYNC_DEVICE bool all_finite(const Team& team, const UnitJob& job) {
  return all_finite(team, job.facts.n, [&](std::int64_t i) { return gradient(job, i); });
}

template <typename Team>
CASYNC_DEVICE void copy(const Team& team, const float* from, std::int64_t length, float* to) {
  for (std::int64_t i = team.rank(); i < length; i += team.size()) to[i] = from[i];
  team.barrier();
}

// --- payloads

/// The count of a unit that was not finite.
constexpr std::int32_t kPoisonedCount = -1;

/// Single values are written by one thread.
template <typename T, typename Team, typename Value>
CASYNC_DEVICE void write_one(const Team& team, std::byte* to, Value value) {
  if (team.rank() == 0) store(to, static_cast<T>(value));
}
template <typename Team>
CASYNC_DEVICE void fill(const Team& team, std::byte* to, std::int64_t bytes, unsigned value) {
  for (std::int64_t i = team.rank(); i < bytes; i += team.size()) to[i] = static_cast<std::byte>(value);
}
template <typename Team>
CASYNC_DEVICE void fill_nan(const Team& team, std::byte* to, std::int64_t bytes) {
  for (std::int64_t i = team.rank(); 4 * i < bytes; i += team.size()) store(to + 4 * i, kNan);
}

// --- results

CASYNC_DEVICE void deliver(const DecodeJob& job, Into into, std::int64_t i, float value) {
  if (into == Into::set)
    job.out[i] = value;
  else if (into == Into::add)
    job.out[i] = job.out[i] + value;
  else if (into == Into::subtract)
    job.out[i] = job.out[i] - value / job.divisor;
  else
    job.out[i] = job.accumulated[i] + job.out[i] - value / job.divisor;
}
/// Leaves an element, but for the `value` that decode will make of it, in the residual.
CASYNC_DEVICE void lose(const UnitJob& job, std::int64_t i, float value) {
  if (job.residual != nullptr) job.residual[i] = job.accumulated[i] + job.residual[i] - value / job.mid;
}
/// Before single elements are delivered: all others are zero.
template <typename Team>
CASYNC_DEVICE void deliver_zeros(const Team& team, const DecodeJob& job, Into into) {
  if (into == Into::add || into == Into::subtract) return;
  for (std::int64_t i = team.rank(); i < job.facts.n; i += team.size()) deliver(job, into, i, 0.0F);
  team.barrier();
}
/// False if there is no such place.
CASYNC_DEVICE bool deliver_one(const DecodeJob& job, Into into, std::int32_t place, float value) {
  if (place < 0 || place >= job.facts.n) return false;
  if (into == Into::set)
    job.out[place] = value;
  else if (into == Into::add)
    job.out[place] += value;
  else
    job.out[place] -= value / job.divisor;
  return true;
}
template <typename Team>
CASYNC_DEVICE void deliver_everywhere(const Team& team, const DecodeJob& job, float value) {
  for (std::int64_t i = team.rank(); i < job.facts.n; i += team.size()) job.out[i] = value;
  team.barrier();
}

}  // namespace casync::codec::cuda
