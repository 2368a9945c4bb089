#pragma once

#include <memory>
#include <string_view>

#include "casync/codec.hpp"

namespace casync {

/// A codec of which nothing but lengths is left, for worlds whose buffers hold nothing: it cuts as the codec of `spec`
/// does, and its payloads are as long as is usual, or else as they may be. It touches no memory and keeps nothing of a
/// gradient.
std::shared_ptr<const Codec> make_lengths(std::string_view spec);

}  // namespace casync
