#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "casync/codec.hpp"
#include "codec/cpu/generated_codec.hpp"
#include "codec/cuda/device_code.hpp"

namespace casync::codec {

/// A generated codec with its parameters.
struct Instance {
  const GeneratedCodec& codec;
  std::string spec;
  std::vector<Parameter> parameters;
  std::size_t choice = 0;
  std::uint32_t start_step = 0;  ///< gradients go uncompressed before it
  float feedback_decay = 1.0F;
  int feedback_bits = 32;

  const UnitKernels& kernels() const { return codec.kernels[static_cast<std::size_t>(current_isa())][choice]; }
  /// Of a whole gradient.
  Facts facts(const Shape& shape) const;
  CodecInfo info() const;
};

/// What segments and units add to the facts of a gradient.
Facts facts_of(const Instance& instance, const Segment& segment);

std::vector<StateArray> states_of(const Instance& instance, const Shape& shape);
void start_state(const Instance& instance, const Shape& shape, std::uint64_t name_hash, std::size_t index,
                 std::span<float> values);
void propose_values(const Instance& instance, const Segment& segment, std::span<float> values);
void agree_on(const Instance& instance, const Segment& segment, std::span<const float> values);

/// The part of the contract that does not depend on how a generated codec computes; `Base` is Codec or a class of it.
template <typename Base>
class Generated : public Base, private cuda::DeviceCode {
 public:
  explicit Generated(Instance instance) : instance_(std::move(instance)), info_(instance_.info()) {}

  const CodecInfo& info() const final { return info_; }
  std::vector<StateArray> state(const Shape& shape) const final { return states_of(instance_, shape); }
  void start(const Shape& shape, std::uint64_t name_hash, std::size_t index, std::span<float> values) const final {
    start_state(instance_, shape, name_hash, index, values);
  }
  std::int64_t agreed() const final { return instance_.kernels().propose != nullptr ? 1 : 0; }
  void propose(const Segment& segment, std::span<float> values) const final {
    propose_values(instance_, segment, values);
  }
  void agree(const Segment& segment, std::span<const float> values) const final {
    agree_on(instance_, segment, values);
  }
  bool applies(const Shape& shape, std::uint32_t sequence) const final {
    Facts facts = instance_.facts(shape);
    facts.step = step_of(sequence);
    return sequence >= instance_.start_step && instance_.kernels().applies(facts);
  }
  /// Device code takes a residual as it is, so the host computes what decays, and what is kept in fewer bits.
  const cuda::DeviceCode* device_code() const final {
    return info_.feedback_decay == 1.0F && info_.feedback_bits == 32 ? this : nullptr;
  }

 private:
  const cuda::DeviceKernels& table() const final { return instance_.codec.device[instance_.choice]; }
  cuda::Units units(const Segment& segment) const final {
    cuda::Units units{.facts = facts_of(instance_, segment)};
    units.facts.parameters = nullptr;
    units.facts.state = nullptr;
    std::ranges::copy(instance_.parameters, units.parameters);
    return units;
  }
  Round round(int number) const final { return info_.rounds[static_cast<std::size_t>(number)]; }

 protected:
  Instance instance_;
  CodecInfo info_;
};

std::shared_ptr<const Codec> make_quantiser(Instance instance);
std::shared_ptr<const Codec> make_units(Instance instance);
std::shared_ptr<const Codec> make_rounds(Instance instance);

}  // namespace casync::codec
