// The driver's functions as we have them against cuda.h, where there is one: compiling it is the test.
#include <cuda.h>

#include <type_traits>

#include "cuda/driver.hpp"

namespace casync::cuda {
namespace {

/// A type of the driver's as one of ours: what it is in the binary interface.
template <typename T>
struct Plain {
  using type = T;
};
#define CASYNC_OURS(theirs, ours) \
  template <>                     \
  struct Plain<theirs> {          \
    using type = ours;            \
  };
CASYNC_OURS(CUcontext, Context)
CASYNC_OURS(CUstream, Stream)
CASYNC_OURS(CUevent, EventHandle)
CASYNC_OURS(CUmodule, ModuleHandle)
CASYNC_OURS(CUfunction, Function)
CASYNC_OURS(CUdeviceptr, DevicePointer)
CASYNC_OURS(CUresult, Result)
CASYNC_OURS(CUstreamCaptureStatus, int)
CASYNC_OURS(CUstreamCaptureMode, int)
CASYNC_OURS(CUdevice_attribute, int)
CASYNC_OURS(CUdevice_P2PAttribute, int)
CASYNC_OURS(CUuuid, Uuid)
CASYNC_OURS(CUipcMemHandle, IpcHandle)
#undef CASYNC_OURS
template <typename T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <typename R, typename... Parameters>
struct Plain<R (*)(Parameters...)> {
  using type = typename Plain<R>::type (*)(typename Plain<Parameters>::type...);
};
template <typename... Parameters>
struct Plain<void (*)(Parameters...)> {
  using type = void (*)(Parameters...);
};

static_assert(sizeof(CUresult) == sizeof(Result) && sizeof(CUstreamCaptureStatus) == sizeof(int));
static_assert(sizeof(CUstreamCaptureMode) == sizeof(int) && sizeof(CUdeviceptr) == sizeof(DevicePointer));
static_assert(CUDA_SUCCESS == kSuccess && CUDA_ERROR_OUT_OF_MEMORY == kOutOfMemory &&
              CUDA_ERROR_NOT_READY == kNotReady);
static_assert(CU_STREAM_NON_BLOCKING == kNonBlocking && CU_EVENT_DISABLE_TIMING == kNoTiming);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == kRelaxed);
static_assert(sizeof(CUuuid) == sizeof(Uuid) && sizeof(CUdevice_attribute) == sizeof(int));
static_assert(sizeof(CUdevice_P2PAttribute) == sizeof(int));
static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == kProcessors);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == kMajor &&
              CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == kMinor);
static_assert(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK == kPerformanceRank &&
              CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED == kAccessSupported);
static_assert(sizeof(CUipcMemHandle) == sizeof(IpcHandle) && CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == kLazyPeerAccess);
static_assert(CU_MEMHOSTALLOC_PORTABLE == kPortable && CU_STREAM_CAPTURE_STATUS_NONE == 0);

// Names in the header without their version are macros for those with it.
#define CASYNC_HELD_TO_HEADER(name, parameters) \
  static_assert(std::is_same_v<Plain<decltype(&::name)>::type, decltype(Driver::name)>, #name);
CASYNC_CUDA_FUNCTIONS(CASYNC_HELD_TO_HEADER)
#undef CASYNC_HELD_TO_HEADER

}  // namespace
}  // namespace casync::cuda
