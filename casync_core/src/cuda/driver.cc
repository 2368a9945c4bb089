#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <optional>

#include "casync/error.hpp"

namespace casync::cuda {
namespace {

constexpr int kOldest = 12'000;  // exports every name of CASYNC_CUDA_FUNCTIONS

std::string version_text(int version) { return detail::concat(version / 1000, '.', version % 1000 / 10); }

/// Why there is no driver to work with; nothing: `driver` is filled and initialised.
std::optional<std::string> load(Driver& driver) {
  const char* const named = std::getenv("CASYNC_CUDA_DRIVER");
  const std::string library = named == nullptr ? "libcuda.so.1" : named;
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return detail::concat(
        "CUDA's driver is not there (", dlerror(),
        "): install NVIDIA's driver 525 or newer, or start the container with its GPUs, or train with "
        "tensors on the CPU");
  }
  const auto too_old = [&](const auto&... what) {
    return detail::concat(library, ' ', what..., ": install NVIDIA's driver 525 or newer, which serves CUDA ",
                          version_text(kOldest));
  };
#define CASYNC_CUDA_FIND(name, parameters)                                     \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(handle, #name)); \
  if (driver.name == nullptr) return too_old("is too old, or not CUDA's: it has no " #name);
  CASYNC_CUDA_FUNCTIONS(CASYNC_CUDA_FIND)
#undef CASYNC_CUDA_FIND
  int version = 0;
  if (driver.cuDriverGetVersion(&version) != kSuccess || version < kOldest) {
    return too_old("is too old: it serves CUDA ", version_text(version));
  }
  if (const Result result = driver.cuInit(0); result != kSuccess) {
    return detail::concat("CUDA's driver does not start: ", driver.text_of(result),
                          ". `nvidia-smi` shows whether it sees a device");
  }
  int devices = 0;
  if (const Result result = driver.cuDeviceGetCount(&devices); result != kSuccess || devices == 0) {
    return "CUDA's driver sees no device: `nvidia-smi` shows what there is, and CUDA_VISIBLE_DEVICES may hide it";
  }
  return std::nullopt;
}

}  // namespace

std::string Driver::text_of(Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  if (name == nullptr || text == nullptr) return detail::concat("error ", result);
  return detail::concat(name, " (", text, ")");
}

void Driver::fail(Result result, const char* call) const {
  throw DeviceFailure(detail::concat("CUDA's ", call, " failed with ", text_of(result)));
}

const Driver& driver() {
  static std::mutex mutex;
  static pid_t loaded_by = 0;
  static Driver table;
  const std::lock_guard lock(mutex);
  if (loaded_by == 0) {
    Driver found;
    if (const auto why = load(found)) throw DeviceFailure(*why);
    table = found;
    loaded_by = getpid();
  }
  if (loaded_by != getpid()) {  // whose threads and contexts stayed with the parent
    throw DeviceFailure(
        "this process was forked after CUDA was used, and CUDA does not work in such a child: use it in the parent "
        "only, or start child processes with the spawn method");
  }
  return table;
}

}  // namespace casync::cuda
