#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "casync/codec_state.hpp"
#include "casync/memory.hpp"

namespace casync {

/// What is kept of a gradient between its runs: its residual, and the state of its codec.
class Kept {
 public:
  FloatArray residual;             ///< one float32 per element; empty: there is none, or it is far
  std::unique_ptr<FarFloats> far;  ///< the residual, where a stream computes for the gradient; null: it is not far

  const CodecState& state() const { return state_; }
  /// The state of a checkpoint: what it holds is taken over when its codec starts, the rest starts anew.
  void set_state(CodecState state);
  /// Whether the state is that of `codec` for a gradient of `shape`, started.
  bool fits(const Codec& codec, const Shape& shape) const;
  /// Whether start() would take over what was set.
  bool restores(const Codec& codec) const { return !started_ && state_.codec == codec.info().spec; }
  /// The residual is the host's again, if it was far. Nothing computes for the gradient.
  void come_home() {
    if (far == nullptr) return;
    residual = far->copy();
    far = nullptr;
  }
  bool has_residual() const { return far != nullptr || !residual.empty(); }
  FloatArray residual_copy() const { return far != nullptr ? far->copy() : residual; }
  /// Of any place.
  float* residual_data() { return far != nullptr ? far->data() : residual.data(); }

  /// Begins the state of `codec`. Throws InvalidArgument, naming the tensor, if what was set does not fit.
  void start(const Codec& codec, const Shape& shape, const std::string& name, std::uint64_t name_hash);
  void count(std::uint32_t step) { state_.steps = step + 1; }
  void agree() { state_.agreed = true; }
  /// Whether it holds agreed values for a gradient of `shape`.
  bool agreed(const Shape& shape) const { return state_.agreed && (!started_ || shape_ == shape); }
  /// What its codec holds back of the gradient: the arrays that are `pending`, added.
  FloatArray pending() const;
  /// The first array that is `pending`, null if there is none.
  float* pending_array();
  /// As a segment takes them.
  std::span<float* const> arrays() const { return pointers_; }

  std::size_t bytes() const;

 private:
  CodecState state_;
  bool started_ = false;
  Shape shape_;
  std::vector<float*> pointers_;
};

/// State arrays that nobody keeps: a copy of those of `segment`, or such as `codec` starts with.
class ScratchState {
 public:
  ScratchState(const Codec& codec, const Segment& segment);
  /// Such as `codec` starts with, but in place of those that all ranks share the ones of `kept`.
  ScratchState(const Codec& codec, const Shape& shape, std::uint64_t name_hash, const Kept& kept);
  ScratchState(const ScratchState&) = delete;
  ScratchState& operator=(const ScratchState&) = delete;
  std::span<float* const> arrays() const { return pointers_; }

 private:
  std::vector<FloatArray> values_;
  std::vector<float*> pointers_;
};

/// Adds `values` to the first of `sum`, which takes their length if it is empty.
void add_to(FloatArray& sum, std::span<const float> values);

/// Throws InvalidArgument, naming tensor, array and both lengths, if `state` cannot be that of its codec for a gradient
/// of `shape`.
void check_state(const std::string& name, const CodecState& state, const Shape& shape);

}  // namespace casync
