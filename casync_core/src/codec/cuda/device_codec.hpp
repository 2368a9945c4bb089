#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "casync/codec.hpp"
#include "codec/cuda/common_kernels.hpp"
#include "codec/cuda/device_code.hpp"
#include "codec/cuda/device_job.hpp"
#include "codec/cuda/launches.hpp"
#include "cuda/arena.hpp"
#include "cuda/module.hpp"

namespace casync::codec::cuda {

/// Computes segments of one codec on a stream of a device: the bytes of `Codec::run`.
///
/// Sources, residual, state and results may be memory of the device or pinned memory of the host. Payloads are pinned,
/// so that a transport of the host can send them, unless a job says otherwise: kernels work on copies of them in the
/// device's memory. The device is waited for when a range is new. One thread at a time, while the device is current.
class DeviceCodec {
 public:
  /// The most elements of several gradients that are launched together, since each needs memory of its own meanwhile.
  static constexpr std::int64_t kMostTogether = std::int64_t{1} << 24;

  /// `code`: of Codec::device_code(), compiled for this device. Throws DeviceFailure.
  DeviceCodec(const casync::cuda::Device& device, std::shared_ptr<const Codec> codec, const std::string& code);
  ~DeviceCodec();
  DeviceCodec(const DeviceCodec&) = delete;
  DeviceCodec& operator=(const DeviceCodec&) = delete;

  /// Whether a device can compute for a gradient that goes by `codec`: sums of floats, by a codec that has device code.
  static bool supports(const Codec& codec, DType dtype, ReduceOp op);

  /// Throws CorruptPayload as Codec::run does for what can be seen at once.
  void check(const Segment& segment) const;
  /// Jobs that were checked and do not depend on each other, by what is launched together: those that take the same
  /// steps. Those of empty ranges are in none.
  std::vector<std::vector<DeviceJob>> groups(std::span<const DeviceJob> jobs) const;
  /// What computes a group, with scratch memory of `arena`, which belongs to `stream`. Throws DeviceFailure.
  Launches prepare(std::span<const DeviceJob> group, casync::cuda::Arena& arena, casync::cuda::Stream stream,
                   const CommonKernels& common);
  /// The same of what the ranks settle before a gradient is first encoded. With a payload this rank's proposal goes
  /// there, from the whole gradient; else the sources are all proposals, and the state follows from their mean, unless
  /// that is not finite, as the report says.
  Launches settle(const DeviceJob& job, casync::cuda::Arena& arena, casync::cuda::Stream stream,
                  const CommonKernels& common);

 private:
  struct Kernel {
    const DeviceKernel* description = nullptr;
    casync::cuda::Function function = nullptr;
    int most_blocks = 1;
  };
  /// The units of a range, or the whole gradient as one, where kernels can read them.
  struct Layout {
    std::int64_t count = 0;
    std::int64_t longest = 0;
    casync::cuda::DevicePointer begins = 0;
    // Of a codec of fixed size:
    casync::cuda::DevicePointer payload_begins = 0;
    std::int64_t payload_bytes = 0;
  };
  class Group;

  Kernel load(const DeviceKernel& kernel) const;
  const Layout& layout_of(const Segment& segment, bool whole, casync::cuda::Stream stream);
  casync::cuda::DevicePointer upload(const std::vector<std::int64_t>& values, casync::cuda::Stream stream);

  const casync::cuda::Device& device_;
  std::shared_ptr<const Codec> codec_;
  const DeviceCode& code_;
  casync::cuda::Module module_;
  Kernel encode_, decode_, place_, move_, locate_, propose_, agree_;
  /// By shape, range and round, and whether it is of the whole gradient.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, int, bool>, Layout> layouts_;
};

}  // namespace casync::codec::cuda
