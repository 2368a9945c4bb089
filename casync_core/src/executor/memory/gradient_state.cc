#include "executor/memory/gradient_state.hpp"

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

void GradientState::set_state(CodecState state) {
  come_home();
  state_ = std::move(state);
  started_ = false;
  pointers_.clear();
}

void GradientState::set_residual(std::span<const float> values) {
  come_home();
  packed_.reset();
  residual.assign(values.begin(), values.end());
}

void GradientState::pack(std::span<const Range> partitions, std::uint64_t seed) {
  packed_.emplace(residual, partitions, seed);
  residual = {};
}

void GradientState::unpack() {
  if (!packed_) return;
  residual = packed_->values();
  packed_.reset();
}

FloatArray GradientState::residual_copy() const {
  if (packed_) return packed_->values();
  return far_residual_ != nullptr ? far_residual_->copy() : residual;
}

bool GradientState::go_far(const std::function<std::unique_ptr<FarFloats>(std::span<const float>)>& send) {
  std::unique_ptr<FarFloats> far_residual;
  if (!residual.empty() && (far_residual = send(residual)) == nullptr) return false;
  std::vector<std::unique_ptr<FarFloats>> far_values;
  for (const FloatArray& values : state_.values) {
    far_values.push_back(send(values));
    if (far_values.back() == nullptr) return false;
  }
  far_residual_ = std::move(far_residual);
  far_values_ = std::move(far_values);
  residual = {};
  for (std::size_t i = 0; i < far_values_.size(); ++i) {
    state_.values[i] = {};
    pointers_[i] = far_values_[i]->data();
  }
  is_far_ = true;
  return true;
}

void GradientState::come_home() {
  if (!is_far_) return;
  residual = residual_copy();
  state_ = state_copy();
  const auto is_there = [](const FloatArray& values, const auto& far) { return values.size() == far->size(); };
  if (!std::ranges::equal(state_.values, far_values_, is_there)) {
    CodecState forgotten;
    forgotten.steps = state_.steps;
    state_ = std::move(forgotten);
    started_ = false;
  }
  pointers_ = pointers_to(state_.values);
  far_residual_ = nullptr;
  far_values_.clear();
  is_far_ = false;
}

CodecState GradientState::state_copy() const {
  CodecState copy = state_;
  for (std::size_t i = 0; i < far_values_.size(); ++i) copy.values[i] = far_values_[i]->copy();
  return copy;
}

bool GradientState::fits(const Codec& codec, const Shape& shape) const {
  return started_ && shape_ == shape && state_.codec == codec.info().spec;
}

void GradientState::start(const Codec& codec, const Shape& shape, const std::string& name, std::uint64_t name_hash) {
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

FloatArray GradientState::pending() const {
  FloatArray sum;
  for (std::size_t i = 0; i < state_.arrays.size(); ++i) {
    if (state_.arrays[i].pending) add_to(sum, state_.values[i]);
  }
  return sum;
}

float* GradientState::pending_array() {
  const auto at = std::ranges::find(state_.arrays, true, &StateArray::pending);
  return at == state_.arrays.end() ? nullptr : pointers_[static_cast<std::size_t>(at - state_.arrays.begin())];
}

void GradientState::fade(float factor) {
  for (float& value : residual) value *= factor;
  for (std::size_t i = 0; i < state_.arrays.size(); ++i) {
    if (!state_.arrays[i].pending) continue;
    for (float& value : state_.values[i]) value *= factor;
  }
}

std::size_t GradientState::bytes() const {
  std::size_t elements = residual.size() + (far_residual_ != nullptr ? far_residual_->size() : 0);
  for (const auto& array : state_.values) elements += array.size();
  for (const auto& array : far_values_) elements += array->size();
  return elements * sizeof(float) + (packed_ ? packed_->bytes() : 0);
}

ScratchState::ScratchState(const Codec& codec, const Segment& segment)
    : values_(started(codec, segment.shape, segment.name_hash)), pointers_(pointers_to(values_)) {
  for (std::size_t i = 0; i < segment.state.size(); ++i)
    std::copy_n(segment.state[i], values_[i].size(), values_[i].begin());
}

ScratchState::ScratchState(const Codec& codec, const Shape& shape, std::uint64_t name_hash, const GradientState& kept)
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
