#include "codec/plugin.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "casync/error.hpp"

namespace casync::codec {
namespace {

std::mutex mutex;
std::vector<const GeneratedCodec*>& loaded() {
  static std::vector<const GeneratedCodec*> codecs;
  return codecs;
}

}  // namespace

std::string load_plugin(const std::string& path) {
  void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr)
    throw InvalidArgument(detail::concat("a compiled codec cannot be loaded: ", dlerror(),
                                         ". If the file is there, remove it: it is made anew"));
  const auto entry = reinterpret_cast<PluginEntry>(dlsym(object, "casync_codec_plugin"));
  const CodecPlugin* const plugin = entry == nullptr ? nullptr : entry(&reading);
  if (plugin == nullptr || plugin->codec_bytes != sizeof(GeneratedCodec)) {
    dlclose(object);
    throw InvalidArgument(detail::concat(path, " is no codec compiled for this version of CaSync; remove it"));
  }
  const std::lock_guard lock(mutex);
  loaded().push_back(plugin->codec);
  return std::string(plugin->codec->name);
}

const GeneratedCodec* find_generated(std::string_view name) {
  const auto named = [&](const GeneratedCodec& codec) { return codec.name == name; };
  const auto library = generated_codecs();
  if (const auto at = std::ranges::find_if(library, named); at != library.end()) return &*at;
  const std::lock_guard lock(mutex);
  const auto at = std::ranges::find_if(loaded(), [&](const GeneratedCodec* codec) { return named(*codec); });
  return at == loaded().end() ? nullptr : *at;
}

}  // namespace casync::codec
