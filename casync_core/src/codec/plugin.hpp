#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "codec/cpu/generated_codec.hpp"

/// Codecs from a shared object that `casync.compll.plugin` compiled from a user's file.
namespace casync::codec {

/// What the object's one exported function, `casync_codec_plugin`, returns.
struct CodecPlugin {
  std::size_t codec_bytes = sizeof(GeneratedCodec);  ///< tells an object for another version of the core
  const GeneratedCodec* codec = nullptr;
};
using PluginEntry = const CodecPlugin* (*)(Reading (*reading)());

/// Opens the object for the rest of the process and returns the codec's name, which make_codec knows from then on.
/// Throws InvalidArgument with the loader's text. Any thread.
std::string load_plugin(const std::string& path);

/// A generated codec of the library or of a loaded object; null if there is none of that name.
const GeneratedCodec* find_generated(std::string_view name);

}  // namespace casync::codec
