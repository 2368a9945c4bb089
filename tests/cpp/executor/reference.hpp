#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "casync/workflow.hpp"
#include "executor/virtual/world.hpp"

namespace casync::test {

using Blob = std::vector<std::byte>;

/// What one tensor's operation must give, computed from the documentation of plan, topology and codec alone: no Engine,
/// no task graph, no message. Uncompressed values are added element by element in the order that the topology
/// documents; a codec is run over the *whole* gradient for what the workers send, and over a partition only where an
/// owner encodes again.
class TensorReference {
 public:
  TensorReference(const VirtualTensor& tensor, std::vector<std::uint32_t> host_of);

  /// One step's result from every rank's input (allgather: of its own rows). Residuals go on from step to step.
  /// `sequence` counts the submissions of the name before: in that step the first plan may be over. Ranks that have
  /// joined submit zeros, and keep what they keep but for what all ranks share.
  Blob step(const std::vector<Blob>& inputs, std::uint32_t sequence, const std::vector<bool>& joined = {});

  const std::vector<float>& residual(int rank) const { return residuals_[static_cast<std::size_t>(rank)]; }
  bool keeps_residuals() const { return feedback_ == Feedback::wrapper; }
  /// The state arrays of the codec, none if it is not used.
  using State = std::vector<std::vector<float>>;
  const State& state(int rank) const { return states_[static_cast<std::size_t>(rank)]; }
  /// What `rank` has not sent yet: its residual, or the codec's pending array; empty if nothing is held back.
  const std::vector<float>& held_back(int rank) const;
  bool holds_back() const { return feedback_ != Feedback::none; }
  bool compressed() const { return compressed_; }
  /// What `rank` is left with of a reducescatter: its share of the rows, the first rows % N ranks with one row more.
  Range rows_of(std::uint32_t rank) const;

 private:
  struct Part {   // one compute step over a range, before it is a Segment
    Range range;  // of `gradient`
    std::uint32_t rank = 0;
    Role role = Role::worker;
    int round = 0;
    bool feedback = false;
    bool final = false;
    bool deliver = false;
    std::vector<Source> sources{};
    std::span<const std::byte> previous{};
    bool encodes = false;
    std::int64_t begin = 0;  // element of the tensor at which what the codec takes for a gradient begins
    Shape gradient{};        // empty: the tensor
  };
  void use(const GradientPlan& plan);
  Blob reduce(const std::vector<Blob>& inputs);
  State started() const;
  Blob compute(const Part& part, void* out);
  void settle(const std::vector<Blob>& inputs);
  Source raw(const Blob& input, const Range& range) const;
  bool is_cut() const;
  Source slice(const Blob& payload, const Range& range, int round) const;

  Blob allreduce_plain(const std::vector<Blob>& inputs) const;
  Blob adasum(const std::vector<Blob>& inputs) const;
  void owned(const std::vector<Blob>& inputs, const std::vector<Blob>& payloads, const Range& range,
             std::uint32_t owner, Blob& out);
  void ring(const std::vector<Blob>& inputs, const Range& range, std::uint32_t owner, Blob& out);
  std::uint32_t leader(std::size_t h, std::uint32_t position) const;
  std::uint32_t contributions() const;
  struct Encoder {
    std::uint32_t rank = 0;
    std::vector<std::uint32_t> adds;  // the ranks whose contributions it encodes as one
  };
  std::vector<Encoder> encoders(std::uint32_t position) const;
  bool gathers() const { return casync::gathers(codec_->info()); }
  void gathered(const std::vector<Blob>& inputs, const Range& range, std::uint32_t position, Blob& out);
  Blob added_in_parts(const std::vector<Blob>& payloads, const Round& round) const;
  void two_level(const std::vector<Blob>& inputs, const Range& range, std::uint32_t position, Blob& out);
  Blob parameter_server(const std::vector<Blob>& inputs);
  Blob rounds(const std::vector<Blob>& inputs);
  void rounds_of(const std::vector<Blob>& inputs, const Range& whole, const std::vector<Encoder>& encoders,
                 std::byte* out);
  Blob scatter(const std::vector<Blob>& inputs);

  VirtualTensor tensor_;
  std::shared_ptr<const Codec> codec_;
  std::vector<std::uint32_t> host_of_;
  std::vector<std::vector<std::uint32_t>> hosts_;
  std::vector<Range> partitions_;
  std::vector<std::vector<float>> residuals_;
  std::vector<State> states_;
  bool settled_ = false;
  std::uint64_t name_hash_;
  std::uint32_t sequence_ = 0;
  bool compressed_ = false;
  Feedback feedback_ = Feedback::none;
};

}  // namespace casync::test
