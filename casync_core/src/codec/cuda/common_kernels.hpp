#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "casync/types.hpp"
#include "codec/cuda/kernels/report_arguments.hpp"
#include "codec/cuda/raw_kernels.hpp"
#include "cuda/module.hpp"

namespace casync::codec::cuda {

/// Launches of what no codec generates, kernels/raw.hpp and kernels/report.hpp, on one device. Any thread, while the
/// device is current. All throw DeviceFailure.
class CommonKernels {
 public:
  /// `code`: both, compiled for the device.
  CommonKernels(const casync::cuda::Device& device, const std::string& code);

  void load(DType dtype, RawLoad load, casync::cuda::Stream stream) const;
  void store(DType dtype, RawStore store, casync::cuda::Stream stream) const;
  /// Not of float64, which no payload is made of.
  void divide(DType dtype, RawStore store, casync::cuda::Stream stream) const;
  /// Of any number of sources; `to` has none of them. `to.out` may be one of the first RawMerge::kMost.
  void merge(DType dtype, std::span<const RawSource> sources, RawMerge to, casync::cuda::Stream stream) const;
  void look(LookBatch batch, casync::cuda::Stream stream) const;
  void report(EncodedBatch batch, casync::cuda::Stream stream) const;
  void report(DecodedBatch batch, casync::cuda::Stream stream) const;

 private:
  template <typename Arguments>
  void launch(casync::cuda::Function function, Arguments& arguments, std::int64_t elements,
              casync::cuda::Stream stream) const;

  const casync::cuda::Driver& driver_;
  casync::cuda::Module module_;
  std::array<casync::cuda::Function, 4> load_{}, store_{};  // by DType
  std::array<casync::cuda::Function, 3> divide_{}, merge_{};
  casync::cuda::Function look_, encoded_, decoded_;
  std::int64_t most_blocks_ = 1;
};

}  // namespace casync::codec::cuda
