/// What frameworks/mxnet/engine.py calls, by ctypes. Errors are returned as MXNet's functions return them: not 0, and
/// MXGetLastError has the text.

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "push.hpp"

namespace {

const casync_c_api* casync_table = nullptr;
std::optional<casync::mxnet::Engine> mxnet_engine;

}  // namespace

#define CASYNC_EXPORTED extern "C" __attribute__((visibility("default")))

/// Once, before anything else: CaSync's table, and what dlopen gave for libmxnet. The text of an error; null: none.
CASYNC_EXPORTED const char* casync_mxnet_load(const casync_c_api* casync, void* library) {
  static std::string text;
  if (casync->version != CASYNC_C_API_VERSION) return "casync.mxnet was built with another version of CaSync";
  try {
    mxnet_engine = casync::mxnet::Engine::in(library);
  } catch (const std::runtime_error& error) {
    return (text = error.what()).c_str();
  }
  casync_table = casync;
  return nullptr;
}

/// Has the engine start `count` operations together; `session` made their tensors. Does not wait.
CASYNC_EXPORTED int casync_mxnet_push(std::int32_t process_set, const void* session,
                                      const casync_mxnet_operation* operations, std::size_t count, int priority,
                                      const char* name) {
  try {
    auto push = std::make_unique<casync::mxnet::Push>(*casync_table, *mxnet_engine, process_set, session,
                                                      std::span(operations, count));
    return casync::mxnet::Push::give(push.release(), priority, name) ? 0 : -1;
  } catch (const std::exception&) {
    return -1;
  }
}
