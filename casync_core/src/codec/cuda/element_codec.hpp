#pragma once

#include "casync/codec.hpp"
#include "codec/cuda/common_kernels.hpp"
#include "codec/cuda/device_job.hpp"
#include "cuda/arena.hpp"

namespace casync::codec::cuda {

/// Computes segments of `none`, `fp16` and `bf16` on a stream of a device: the bytes of `Codec::run`. Payloads are
/// elements of one dtype, so the kernels that all codecs have do it, and the codecs need no code of their own. Memory
/// is as DeviceCodec has it; a payload that is written begins where an element may.
class ElementCodec {
 public:
  /// Whether it can compute for a gradient that goes by `codec`: sums of floats, uncompressed ones of float64 excepted,
  /// which the CPU adds in float64.
  static bool supports(const Codec& codec, DType dtype, ReduceOp op);

  /// Throws CorruptPayload as Codec::run does for what can be seen at once.
  static void check(const Codec& codec, const Segment& segment);
  /// What computes a job that was checked, with scratch memory of `arena`. Throws DeviceFailure.
  static Launches prepare(const Codec& codec, const DeviceJob& job, const casync::cuda::Driver& driver,
                          casync::cuda::Arena& arena, const CommonKernels& common);
};

}  // namespace casync::codec::cuda
