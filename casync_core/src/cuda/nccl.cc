#include "cuda/nccl.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "casync/error.hpp"

namespace casync::cuda {
namespace {

constexpr int kOldest = 21'800;  // has asynchronous errors of every call, and ends without waiting
constexpr const char* kName = "libnccl.so.2";
constexpr const char* kRemedy =
    ": install NCCL 2.18 or newer, `pip install nvidia-nccl-cu13` or the package of CUDA's version, or go on without: "
    "then what travels passes through the host's memory";

std::string text_of_version(int version) {
  const int major = version < 10'000 ? 1'000 : 10'000;  // the first before 2.9
  return detail::concat(version / major, '.', version % major / 100, '.', version % 100);
}

/// Null: there is none, and dlerror says why not.
void* open_library(const std::string& wheel) {
  if (const char* const named = std::getenv("CASYNC_NCCL")) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
  if (void* const loaded = dlopen(kName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return loaded;
  return dlopen(wheel.empty() ? kName : wheel.c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Why there is no NCCL to work with; nothing: `table` is filled.
std::optional<std::string> load(Nccl& table, const std::string& wheel) {
  void* const handle = open_library(wheel);
  if (handle == nullptr) return detail::concat("NCCL is not there (", dlerror(), ')', kRemedy);
  const link_map* file = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &file) == 0) table.path = file->l_name;
  const auto version_of = reinterpret_cast<decltype(table.ncclGetVersion)>(dlsym(handle, "ncclGetVersion"));
  if (version_of == nullptr) return detail::concat(table.path, " is not NCCL: it has no ncclGetVersion", kRemedy);
  if (version_of(&table.version) != kNcclSuccess || table.version < kOldest) {
    return detail::concat(table.path, " is NCCL ", text_of_version(table.version), ", which is too old", kRemedy);
  }
#define CASYNC_NCCL_FIND(type, name, parameters)                             \
  table.name = reinterpret_cast<decltype(table.name)>(dlsym(handle, #name)); \
  if (table.name == nullptr) return detail::concat(table.path, " is too old, or not NCCL: it has no " #name, kRemedy);
  CASYNC_NCCL_FUNCTIONS(CASYNC_NCCL_FIND)
#undef CASYNC_NCCL_FIND
  return std::nullopt;
}

}  // namespace

std::string Nccl::version_text() const { return text_of_version(version); }

std::string Nccl::text_of(NcclResult result) const {
  const char* const text = ncclGetErrorString(result);
  const char* const last = ncclGetLastError(nullptr);
  std::string all = text == nullptr ? detail::concat("error ", result) : text;
  if (last != nullptr && *last != '\0') all += detail::concat(" (", last, ')');
  return all;
}

const Nccl& nccl(const std::string& wheel) {
  static std::mutex mutex;
  static bool is_loaded = false;
  static Nccl table;
  const std::lock_guard lock(mutex);
  if (!is_loaded) {
    Nccl found;
    if (const auto why = load(found, wheel)) throw DeviceFailure(*why);
    table = found;
    is_loaded = true;
  }
  return table;
}

}  // namespace casync::cuda
