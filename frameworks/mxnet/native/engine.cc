#include "engine.hpp"

#include <dlfcn.h>

namespace casync::mxnet {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& found) {
  found = reinterpret_cast<Function>(dlsym(library, name));
  if (found == nullptr) throw std::runtime_error(std::string("this MXNet has no function ") + name);
}

}  // namespace

Engine Engine::in(void* library) {
  Engine engine;
  find(library, "MXEnginePushAsyncND", engine.push);
  find(library, "MXShallowCopyNDArray", engine.share);
  find(library, "MXNDArrayFree", engine.free);
  find(library, "MXNDArrayGetData", engine.data);
  find(library, "MXGetLastError", engine.error_text);
  return engine;
}

}  // namespace casync::mxnet
