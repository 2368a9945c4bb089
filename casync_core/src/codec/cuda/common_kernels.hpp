#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "casync/types.hpp"
#include "codec/cuda/kernels/copy_arguments.hpp"
#include "codec/cuda/kernels/report_arguments.hpp"
#include "codec/cuda/launches.hpp"
#include "codec/cuda/raw_kernels.hpp"
#include "cuda/module.hpp"

namespace casync::codec::cuda {

/// Launches of what no codec generates, kernels/raw.hpp, kernels/report.hpp and kernels/copy.hpp, on one device: of
/// several gradients at a time. Any thread, while the device is current.
class CommonKernels {
 public:
  /// `code`: all of them, compiled for the device. Throws DeviceFailure.
  CommonKernels(const casync::cuda::Device& device, const std::string& code);

  void load(DType dtype, const std::vector<RawLoad>& loads, Launches& launches) const;
  void store(DType dtype, const std::vector<RawStore>& stores, Launches& launches) const;
  /// Not of float64, which no payload is made of.
  void divide(DType dtype, const std::vector<RawStore>& stores, Launches& launches) const;
  /// The sources of one gradient, any number of them; `to` says what becomes of them. Sums of int8 saturate.
  void merge(DType dtype, std::span<const RawSource> sources, RawMerge to, Launches& launches) const;
  void look(const std::vector<LookBatch>& looks, Launches& launches) const;
  void report(const std::vector<EncodedBatch>& reports, Launches& launches) const;
  void report(const std::vector<DecodedBatch>& reports, Launches& launches) const;
  /// Payloads to or from pinned memory: long ones whose length the host knows by copies, all others by a kernel.
  void carry(const std::vector<CopyBatch>& payloads, bool to_device, Launches& launches) const;

 private:
  template <typename Arguments, typename Items>
  void add(casync::cuda::Function function, const std::vector<Arguments>& arguments, const Items& items_of,
           Launches& launches) const;

  casync::cuda::Module module_;
  std::array<casync::cuda::Function, std::size(kLoadRaw)> load_{}, store_{}, merge_{};  // by DType
  std::array<casync::cuda::Function, std::size(kDivideRaw)> divide_{};
  casync::cuda::Function look_, encoded_, decoded_, copy_;
  std::int64_t most_blocks_ = 1;
};

}  // namespace casync::codec::cuda
