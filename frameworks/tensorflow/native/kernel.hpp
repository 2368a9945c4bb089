#pragma once

#include <casync/c_api.h>

#include "framework.hpp"

/// The kernels: each submits its tensor to the session of its process set and ends when CaSync says that it is done. No
/// thread of TensorFlow's waits, and none takes the GIL.
namespace casync::tensorflow {

/// What every operation is given when a graph is made.
inline constexpr const char* kAttributes[] = {
    "T: {float32, float16, bfloat16, float64, int8, int16, int32, int64, uint8, uint16, bool}",
    "tensor_name: string",
    "site: string",
    "compression: string",
    "topology: string",
    "process_set: int",
    "reduce_op: int",
    "root: int",
    "prescale: float",
    "postscale: float"};

template <int kKind>
void* create(TF_OpKernelConstruction* construction);

struct OpSpec {
  const char* name;
  int kind;  ///< casync_kind
  CreateFunction create;
};

extern const OpSpec kOpSpecs[5];

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
void destroy(void* kernel);

/// The table that the kernels call from now on.
void use(const casync_c_api& table);

}  // namespace casync::tensorflow
