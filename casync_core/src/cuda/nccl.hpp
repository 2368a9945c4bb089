#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "cuda/driver.hpp"

/// NCCL, which moves memory between devices, found at run time as CUDA's driver is, and without a header of its own.
namespace casync::cuda {

// NCCL's own types, as its binary interface has them since 2.18. tests/cpp/cuda holds them to nccl.h.
using NcclResult = int;  ///< ncclResult_t
struct NcclCommOpaque;
using NcclComm = NcclCommOpaque*;
struct NcclId {  ///< ncclUniqueId
  char bytes[128];
};
/// ncclConfig_t of 2.18. Later ones are longer, and take what `version` does not know yet from their own defaults.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;

  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21'800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int room = kUndefined;  ///< nothing in 2.18; a later field lies here
};
static_assert(sizeof(NcclConfig) == 48 && offsetof(NcclConfig, net_name) == 32);

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;
inline constexpr NcclResult kNcclRemoteError = 6;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclBytes = 1;  ///< ncclUint8

/// The functions that we call, by the names that the library exports; parameters as in nccl.h.
// clang-format off
#define CASYNC_NCCL_FUNCTIONS(F)                                                                                     \
  F(NcclResult, ncclGetVersion, (int* version))                                                                      \
  F(const char*, ncclGetErrorString, (NcclResult result))                                                            \
  F(const char*, ncclGetLastError, (NcclComm comm))                                                                  \
  F(NcclResult, ncclGetUniqueId, (NcclId* id))                                                                       \
  F(NcclResult, ncclCommInitRankConfig, (NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config))         \
  F(NcclResult, ncclCommGetAsyncError, (NcclComm comm, NcclResult* result))                                          \
  F(NcclResult, ncclCommFinalize, (NcclComm comm))                                                                   \
  F(NcclResult, ncclCommDestroy, (NcclComm comm))                                                                    \
  F(NcclResult, ncclCommAbort, (NcclComm comm))                                                                      \
  F(NcclResult, ncclGroupStart, ())                                                                                  \
  F(NcclResult, ncclGroupEnd, ())                                                                                    \
  F(NcclResult, ncclSend, (const void* memory, std::size_t count, int dtype, int peer, NcclComm comm, Stream stream))\
  F(NcclResult, ncclRecv, (void* memory, std::size_t count, int dtype, int peer, NcclComm comm, Stream stream))
// clang-format on

struct Nccl {
#define CASYNC_NCCL_MEMBER(type, name, parameters) type(*name) parameters = nullptr;
  CASYNC_NCCL_FUNCTIONS(CASYNC_NCCL_MEMBER)
#undef CASYNC_NCCL_MEMBER

  int version = 0;   ///< 10000 for each major version, 100 for each minor one
  std::string path;  ///< of the file that it came from

  std::string version_text() const;
  /// What NCCL says of `result`, and of what led to it on this thread.
  std::string text_of(NcclResult result) const;
};

/// NCCL of this process, loaded by the first call: the copy that the framework has loaded, else `wheel` (the path of
/// the one in a Python package; empty: there is none), else the system's. Throws DeviceFailure, each time, if there is
/// none, or if it is older than 2.18: with the reason, and what to do. Any thread. CASYNC_NCCL names another library
/// than all these, for tests.
const Nccl& nccl(const std::string& wheel = {});

}  // namespace casync::cuda
