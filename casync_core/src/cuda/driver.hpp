#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

/// CUDA's driver, found at run time: one build serves machines with and without it, and needs none of CUDA's headers.
namespace casync::cuda {

// The driver's own types, as its binary interface has them. tests/cpp/cuda holds them to cuda.h.
using Result = int;  ///< CUresult
using DeviceNumber = int;
using DevicePointer = std::uint64_t;
struct ContextOpaque;
struct StreamOpaque;
struct EventOpaque;
struct ModuleOpaque;
struct FunctionOpaque;
using Context = ContextOpaque*;
using Stream = StreamOpaque*;  ///< null: the legacy default stream
using EventHandle = EventOpaque*;
using ModuleHandle = ModuleOpaque*;
using Function = FunctionOpaque*;
using HostFunction = void (*)(void*);
struct IpcHandle {  ///< CUipcMemHandle
  char bytes[64];
};
struct Uuid {  ///< CUuuid
  char bytes[16];
};

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;       ///< CUDA_ERROR_OUT_OF_MEMORY
inline constexpr Result kNotReady = 600;        ///< CUDA_ERROR_NOT_READY
inline constexpr unsigned kNonBlocking = 1;     ///< CU_STREAM_NON_BLOCKING
inline constexpr unsigned kNoTiming = 2;        ///< CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kPortable = 1;        ///< CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kLazyPeerAccess = 1;  ///< CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int kRelaxed = 2;              ///< CU_STREAM_CAPTURE_MODE_RELAXED
inline constexpr int kProcessors = 16;          ///< CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kMajor = 75;               ///< CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int kMinor = 76;               ///< CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
inline constexpr int kPerformanceRank = 1;      ///< CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
inline constexpr int kAccessSupported = 2;      ///< CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED

/// The functions that we call, by the names that the library exports; parameters as in cuda.h.
// clang-format off
#define CASYNC_CUDA_FUNCTIONS(F)                                                                            \
  F(cuInit, (unsigned flags))                                                                               \
  F(cuDriverGetVersion, (int* version))                                                                     \
  F(cuGetErrorName, (Result result, const char** name))                                                     \
  F(cuGetErrorString, (Result result, const char** text))                                                   \
  F(cuDeviceGetCount, (int* count))                                                                         \
  F(cuDeviceGet, (DeviceNumber* device, int ordinal))                                                       \
  F(cuDeviceGetName, (char* name, int room, DeviceNumber device))                                           \
  F(cuDeviceGetUuid_v2, (Uuid* uuid, DeviceNumber device))                                                  \
  F(cuDeviceTotalMem_v2, (std::size_t* bytes, DeviceNumber device))                                         \
  F(cuDeviceGetPCIBusId, (char* address, int room, DeviceNumber device))                                    \
  F(cuDeviceGetAttribute, (int* value, int attribute, DeviceNumber device))                                 \
  F(cuDeviceGetP2PAttribute, (int* value, int attribute, DeviceNumber from, DeviceNumber to))               \
  F(cuDevicePrimaryCtxRetain, (Context* context, DeviceNumber device))                                      \
  F(cuDevicePrimaryCtxRelease_v2, (DeviceNumber device))                                                    \
  F(cuCtxPushCurrent_v2, (Context context))                                                                 \
  F(cuCtxPopCurrent_v2, (Context* context))                                                                 \
  F(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                               \
  F(cuStreamCreateWithPriority, (Stream* stream, unsigned flags, int priority))                             \
  F(cuStreamDestroy_v2, (Stream stream))                                                                    \
  F(cuStreamSynchronize, (Stream stream))                                                                   \
  F(cuStreamQuery, (Stream stream))                                                                         \
  F(cuStreamIsCapturing, (Stream stream, int* status))                                                      \
  F(cuThreadExchangeStreamCaptureMode, (int* mode))                                                         \
  F(cuStreamWaitEvent, (Stream stream, EventHandle event, unsigned flags))                                  \
  F(cuEventCreate, (EventHandle* event, unsigned flags))                                                    \
  F(cuEventDestroy_v2, (EventHandle event))                                                                 \
  F(cuEventRecord, (EventHandle event, Stream stream))                                                      \
  F(cuEventQuery, (EventHandle event))                                                                      \
  F(cuMemHostAlloc, (void** memory, std::size_t bytes, unsigned flags))                                     \
  F(cuMemFreeHost, (void* memory))                                                                          \
  F(cuMemcpyDtoHAsync_v2, (void* to, DevicePointer from, std::size_t bytes, Stream stream))                 \
  F(cuMemcpyHtoDAsync_v2, (DevicePointer to, const void* from, std::size_t bytes, Stream stream))           \
  F(cuMemcpyDtoDAsync_v2, (DevicePointer to, DevicePointer from, std::size_t bytes, Stream stream))         \
  F(cuIpcGetMemHandle, (IpcHandle* handle, DevicePointer memory))                                           \
  F(cuIpcOpenMemHandle_v2, (DevicePointer* memory, IpcHandle handle, unsigned flags))                       \
  F(cuIpcCloseMemHandle, (DevicePointer memory))                                                            \
  F(cuMemAlloc_v2, (DevicePointer* memory, std::size_t bytes))                                              \
  F(cuMemFree_v2, (DevicePointer memory))                                                                   \
  F(cuMemsetD8Async, (DevicePointer memory, unsigned char value, std::size_t bytes, Stream stream))         \
  F(cuModuleLoadData, (ModuleHandle* module, const void* image))                                            \
  F(cuModuleUnload, (ModuleHandle module))                                                                  \
  F(cuModuleGetFunction, (Function* function, ModuleHandle module, const char* name))                       \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, Function function, int threads, std::size_t shared))\
  F(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,\
                     unsigned block_y, unsigned block_z, unsigned shared, Stream stream, void** arguments,  \
                     void** extra))                                                                         \
  F(cuLaunchCooperativeKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,       \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, Stream stream,  \
                     void** arguments))                                                                     \
  F(cuLaunchHostFunc, (Stream stream, HostFunction function, void* argument))
// clang-format on

struct Driver {
#define CASYNC_CUDA_MEMBER(name, parameters) Result(*name) parameters = nullptr;
  CASYNC_CUDA_FUNCTIONS(CASYNC_CUDA_MEMBER)
#undef CASYNC_CUDA_MEMBER

  /// What CUDA says of `result`: its name and its text.
  std::string text_of(Result result) const;
  /// Throws DeviceFailure unless it is a success. `call` is what was called.
  void check(Result result, const char* call) const {
    if (result != kSuccess) [[unlikely]]
      fail(result, call);
  }

 private:
  [[noreturn]] void fail(Result result, const char* call) const;
};

/// The driver of this process, loaded and initialised by the first call. Throws DeviceFailure, each time, if there is
/// none, if it is too old, if it has no device, or in a child forked from a process that has loaded it: with the
/// reason, and what to do. Any thread. CASYNC_CUDA_DRIVER names another library than libcuda.so.1, for tests.
const Driver& driver();

}  // namespace casync::cuda

/// Calls a function of the driver, and throws DeviceFailure, which names it, for anything but a success.
#define CASYNC_CUDA(driver, name, ...) (driver).check((driver).name(__VA_ARGS__), #name)
