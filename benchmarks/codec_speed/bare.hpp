#pragma once

#include <cstddef>
#include <cstdint>

#include "casync/codec.hpp"

/// What a codec's kernels are measured against: loops that do what must be done and nothing else, from front to back,
/// one function call for all the memory. They know no blocks, units' headers, odd lengths, factors, checks for NaN or
/// choice of kernel. They are compiled for the same instruction sets as the kernels.
namespace casync::bench {

/// The streams of one pass over memory, each aligned to a cache line; null where there is none, and the first of each
/// kind are used first. Payloads have one cache line for every `lines` of float32.
struct Streams {
  std::size_t count = 0;  ///< elements
  std::size_t lines = 1;
  const float* own[2]{};         ///< read
  const std::byte* peer[4]{};    ///< payloads, read
  float* update[2]{};            ///< float32, read and written in place
  float* out = nullptr;          ///< float32, written past the caches
  std::byte* payload = nullptr;  ///< written
  bool stream_payload = false;   ///< past the caches, as the codecs do with a large one
};

struct Bare {
  /// Moves the bytes of `streams`: what is written is a quarter of the sum of what was read, so that it stays bounded
  /// however often it is done. The bound where memory is the limit. Returns something of all that was read.
  float (*move)(const Streams& streams);
  /// terngrad's encode of `own` to `payload`: per 4096 elements the smallest and the largest, then per element a random
  /// number, a code and its bits. The bound where arithmetic is the limit.
  void (*terngrad)(const Streams& streams);
  /// Adds a payload of indices and values to `update`, evenly spread: no other element is touched.
  void (*scatter)(const Streams& streams);
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
