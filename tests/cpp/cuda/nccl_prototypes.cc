// NCCL's functions as we have them against nccl.h, where there is one: compiling it is the test.
#include <nccl.h>

#include <type_traits>

#include "cuda/nccl.hpp"

namespace casync::cuda {
namespace {

/// A type of NCCL's as one of ours: what it is in the binary interface.
template <typename T>
struct Plain {
  using type = T;
};
#define CASYNC_OURS(theirs, ours) \
  template <>                     \
  struct Plain<theirs> {          \
    using type = ours;            \
  };
CASYNC_OURS(ncclResult_t, NcclResult)
CASYNC_OURS(ncclComm_t, NcclComm)
CASYNC_OURS(ncclUniqueId, NcclId)
CASYNC_OURS(ncclConfig_t, NcclConfig)
CASYNC_OURS(ncclDataType_t, int)
CASYNC_OURS(cudaStream_t, Stream)
#undef CASYNC_OURS
template <typename T>
struct Plain<T*> {
  using type = typename Plain<T>::type*;
};
template <typename R, typename... Parameters>
struct Plain<R (*)(Parameters...)> {
  using type = typename Plain<R>::type (*)(typename Plain<Parameters>::type...);
};

static_assert(sizeof(ncclResult_t) == sizeof(NcclResult) && sizeof(ncclDataType_t) == sizeof(int));
static_assert(ncclSuccess == kNcclSuccess && ncclInvalidArgument == kNcclInvalidArgument &&
              ncclInvalidUsage == kNcclInvalidUsage && ncclRemoteError == kNcclRemoteError &&
              ncclInProgress == kNcclInProgress && ncclUint8 == kNcclBytes);
static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));
static_assert(offsetof(ncclConfig_t, blocking) == offsetof(NcclConfig, blocking) &&
              offsetof(ncclConfig_t, netName) == offsetof(NcclConfig, net_name) &&
              offsetof(ncclConfig_t, splitShare) == offsetof(NcclConfig, split_share) &&
              sizeof(ncclConfig_t) >= sizeof(NcclConfig) && NCCL_CONFIG_UNDEF_INT == NcclConfig::kUndefined);

#define CASYNC_HELD_TO_HEADER(result, name, parameters) \
  static_assert(std::is_same_v<Plain<decltype(&::name)>::type, decltype(Nccl::name)>, #name);
CASYNC_NCCL_FUNCTIONS(CASYNC_HELD_TO_HEADER)
#undef CASYNC_HELD_TO_HEADER

}  // namespace
}  // namespace casync::cuda
