#pragma once

#include <cstddef>
#include <cstdint>

#include "casync/codec.hpp"

/// What a codec's kernels are measured against: loops that do what must be done and nothing else, from front to back,
/// one function call for all the memory. They know no blocks, units' headers, odd lengths, factors, checks for NaN or
/// choice of kernel. They are compiled for the same instruction sets as the kernels.
namespace casync::bench {

/// The streams of one case, each aligned to a cache line; null where the case has none. Payloads have one cache line
/// for every `lines` of float32.
struct Streams {
  std::size_t count = 0;  ///< elements
  int lines = 1;
  const float* own = nullptr;    ///< read
  const std::byte* peer[3]{};    ///< payloads, read
  float* update = nullptr;       ///< float32, read and written in place
  float* out = nullptr;          ///< float32, written past the caches
  std::byte* payload = nullptr;  ///< written
  bool stream_payload = false;   ///< past the caches, as the codecs do with a large one
};

struct Bare {
  /// Moves the bytes of `streams`: what is written is the sum of what was read. The bound where memory is the limit.
  void (*move)(const Streams& streams);
  /// terngrad's encode of `own` to `payload`: per 4096 elements the smallest and the largest, then per element a random
  /// number, a code and its bits. The bound where arithmetic is the limit.
  void (*terngrad)(const Streams& streams);
};

namespace baseline {
extern const Bare kBare;
}
namespace avx2 {
extern const Bare kBare;
}
namespace avx512 {
extern const Bare kBare;
}

/// Those of current_isa().
const Bare& bare();

}  // namespace casync::bench
