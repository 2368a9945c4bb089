#include "executor/kept.hpp"

#include <algorithm>
#include <utility>

#include "casync/error.hpp"

namespace casync {
namespace {

std::vector<FloatArray> started(const Codec& codec, const Shape& shape, std::uint64_t name_hash) {
  std::vector<FloatArray> values;
  for (const StateArray& array : codec.state(shape)) {
    values.emplace_back(static_cast<std::size_t>(array.elements), 0.0F);
    codec.start(shape, name_hash, values.size() - 1, values.back());
  }
  return values;
}

std::vector<float*> pointers_to(std::vector<FloatArray>& values) {
  std::vector<float*> pointers;
  for (auto& array : values) pointers.push_back(array.data());
  return pointers;
}

}  // namespace

void Kept::set_state(CodecState state) {
  state_ = std::move(state);
  started_ = false;
  pointers_.clear();
}

bool Kept::fits(const Codec& codec, const Shape& shape) const {
  return started_ && shape_ == shape && state_.codec == codec.info().spec;
}

void Kept::start(const Codec& codec, const Shape& shape, const std::string& name, std::uint64_t name_hash) {
  CodecState fresh{codec.info().spec, false, state_.steps, codec.state(shape), started(codec, shape, name_hash)};
  if (restores(codec)) {
    check_state(name, state_, shape);
    for (std::size_t i = 0; i < state_.arrays.size(); ++i) {
      const auto at = std::ranges::find(fresh.arrays, state_.arrays[i].name, &StateArray::name);
      fresh.values[static_cast<std::size_t>(at - fresh.arrays.begin())] = std::move(state_.values[i]);
    }
    fresh.agreed = state_.agreed;
  }
  state_ = std::move(fresh);
  started_ = true;
  shape_ = shape;
  pointers_ = pointers_to(state_.values);
}

FloatArray Kept::pending() const {
  FloatArray sum;
  for (std::size_t i = 0; i < state_.arrays.size(); ++i) {
    if (state_.arrays[i].pending) add_to(sum, state_.values[i]);
  }
  return sum;
}

float* Kept::pending_array() {
  const auto at = std::ranges::find(state_.arrays, true, &StateArray::pending);
  return at == state_.arrays.end() ? nullptr : pointers_[static_cast<std::size_t>(at - state_.arrays.begin())];
}

std::size_t Kept::bytes() const {
  std::size_t elements = far != nullptr ? far->size() : residual.size();
  for (const auto& array : state_.values) elements += array.size();
  return elements * sizeof(float);
}

ScratchState::ScratchState(const Codec& codec, const Segment& segment)
    : values_(started(codec, segment.shape, segment.name_hash)), pointers_(pointers_to(values_)) {
  for (std::size_t i = 0; i < segment.state.size(); ++i)
    std::copy_n(segment.state[i], values_[i].size(), values_[i].begin());
}

ScratchState::ScratchState(const Codec& codec, const Shape& shape, std::uint64_t name_hash, const Kept& kept)
    : values_(started(codec, shape, name_hash)), pointers_(pointers_to(values_)) {
  for (std::size_t i = 0; i < pointers_.size(); ++i) {
    if (kept.state().arrays[i].shared) pointers_[i] = kept.arrays()[i];
  }
}

void add_to(FloatArray& sum, std::span<const float> values) {
  if (sum.empty()) sum.assign(values.size(), 0.0F);
  for (std::size_t i = 0; i < std::min(sum.size(), values.size()); ++i) sum[i] += values[i];
}

void check_state(const std::string& name, const CodecState& state, const Shape& shape) {
  if (state.arrays.empty()) return;
  const std::vector<StateArray> wanted = make_codec(state.codec)->state(shape);
  for (std::size_t i = 0; i < state.arrays.size(); ++i) {
    const auto at = std::ranges::find(wanted, state.arrays[i].name, &StateArray::name);
    const std::int64_t elements = state.arrays[i].elements;
    if (at != wanted.end() && at->elements == elements) continue;
    throw InvalidArgument(detail::concat("tensor ", name, ": the codec state that was set holds ", elements,
                                         " values of '", state.arrays[i].name, "', and codec ", state.codec, " keeps ",
                                         at == wanted.end() ? 0 : at->elements, " of a ", shape.rows, " x ", shape.cols,
                                         " gradient; load the state that was saved with this model, or none"));
  }
}

}  // namespace casync
