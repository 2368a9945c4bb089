#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "casync/codec_state.hpp"
#include "casync/memory.hpp"
#include "executor/memory/packed_residual.hpp"

namespace casync {

/// What is kept of a gradient between its runs: its residual, and the state of its codec. While a stream computes for
/// the gradient they are far, where its device reaches them, and the host does not.
class GradientState {
 public:
  FloatArray residual;  ///< one float32 per element; empty: there is none, or it is far or packed

  /// As it is known here: its values are empty while they are far.
  const CodecState& state() const { return state_; }
  /// The state of a checkpoint: what it holds is taken over when its codec starts, the rest starts anew.
  void set_state(CodecState state);
  /// Whether the state is that of `codec` for a gradient of `shape`, started.
  bool fits(const Codec& codec, const Shape& shape) const;
  /// Whether start() would take over what was set.
  bool restores(const Codec& codec) const { return !started_ && state_.codec == codec.info().spec; }
  bool is_far() const { return is_far_; }
  /// All of it goes to where `send` copies floats. False, and it stays, if that gives null: there is no memory.
  bool go_far(const std::function<std::unique_ptr<FarFloats>(std::span<const float>)>& send);
  /// It is the host's again, if it was far; what a device that is lost had is forgotten. Nothing computes for the
  /// gradient.
  void come_home();
  void set_residual(std::span<const float> values);
  bool has_residual() const { return far_residual_ != nullptr || packed_ || !residual.empty(); }
  /// At home and as floats: all that is held back is multiplied by this.
  void fade(float factor);
  /// At home: the residual is kept in 8 bits, and as floats again.
  void pack(std::span<const Range> partitions, std::uint64_t seed);
  void unpack();
  /// Null: it is not packed.
  PackedResidual* packed() { return packed_ ? &*packed_ : nullptr; }
  // Of any place.
  FloatArray residual_copy() const;
  float* residual_data() { return far_residual_ != nullptr ? far_residual_->data() : residual.data(); }
  CodecState state_copy() const;

  /// Begins the state of `codec`. Throws InvalidArgument, naming the tensor, if what was set does not fit.
  void start(const Codec& codec, const Shape& shape, const std::string& name, std::uint64_t name_hash);
  void count(std::uint32_t step) { state_.steps = step + 1; }
  void agree() { state_.agreed = true; }
  /// Whether it holds agreed values for a gradient of `shape`.
  bool agreed(const Shape& shape) const { return state_.agreed && (!started_ || shape_ == shape); }
  /// What its codec holds back of the gradient: the arrays that are `pending`, added. At home.
  FloatArray pending() const;
  /// The first array that is `pending`, null if there is none. At home.
  float* pending_array();
  /// As a segment takes them. Of any place.
  std::span<float* const> arrays() const { return pointers_; }

  std::size_t bytes() const;

 private:
  CodecState state_;
  bool started_ = false;
  bool is_far_ = false;
  Shape shape_;
  std::vector<float*> pointers_;
  std::optional<PackedResidual> packed_;
  std::unique_ptr<FarFloats> far_residual_;               // null: there is none, or it is not far
  std::vector<std::unique_ptr<FarFloats>> far_values_{};  // of the state arrays, while they are far
};

/// State arrays that nobody keeps: a copy of those of `segment`, or such as `codec` starts with.
class ScratchState {
 public:
  ScratchState(const Codec& codec, const Segment& segment);
  /// Such as `codec` starts with, but in place of those that all ranks share the ones of `kept`.
  ScratchState(const Codec& codec, const Shape& shape, std::uint64_t name_hash, const GradientState& kept);
  ScratchState(const ScratchState&) = delete;
  ScratchState& operator=(const ScratchState&) = delete;
  std::span<float* const> arrays() const { return pointers_; }

 private:
  std::vector<FloatArray> values_;
  std::vector<float*> pointers_;
};

/// Adds `values` to the first of `sum`, which takes their length if it is empty.
void add_to(FloatArray& sum, std::span<const float> values);

/// Some neighbouring elements of a residual that have joined a gradient.
struct Carried {
  FloatArray values;  ///< empty: there are none
  std::int64_t begin = 0;
};

/// Throws InvalidArgument, naming tensor, array and both lengths, if `state` cannot be that of its codec for a gradient
/// of `shape`.
void check_state(const std::string& name, const CodecState& state, const Shape& shape);

}  // namespace casync
