#include "framework.hpp"

#include <dlfcn.h>

namespace casync::tensorflow {
namespace {

constexpr const char* kLibrary = "libtensorflow_framework.so.2";

Framework looked_up() {
  Framework found;
  // Loaded by the time anything here runs, since tf.load_op_library loads us; but perhaps not for all to see.
  void* const library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) {
    found.missing = std::string(kLibrary) + " is not loaded";
    return found;
  }
#define CASYNC_LOOK_UP(name, result, arguments)                               \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, #name)); \
  if (found.name == nullptr) found.missing += (found.missing.empty() ? "" : ", ") + std::string(#name);
  CASYNC_TENSORFLOW_FUNCTIONS(CASYNC_LOOK_UP)
#undef CASYNC_LOOK_UP
  return found;
}

}  // namespace

const Framework& framework() {
  static const Framework kFound = looked_up();
  return kFound;
}

bool Done::is_known(TF_AsyncOpKernelDoneCallback* given) {
  // libstdc++: room for what is captured, then two functions, which are the framework's.
  constexpr int kFunctions[] = {2, 3};
  for (const int place : kFunctions) {
    Dl_info about{};
    void* const function = reinterpret_cast<void**>(given)[place];
    if (function == nullptr || dladdr(function, &about) == 0 || about.dli_fname == nullptr) return false;
    if (std::string(about.dli_fname).find("tensorflow") == std::string::npos) return false;
  }
  return true;
}

}  // namespace casync::tensorflow
