#pragma once

#include <cstddef>
#include <cstdint>

/// The inner loops of the codecs, one table per instruction set. Every entry gives the same bits in every table (R8):
/// sums run in 16 lanes (element i in lane i mod 16) over blocks of 1024 elements, lanes are folded 8, 4, 2, 1, blocks
/// added in order. No pointer needs any alignment. `out` may equal an input of the same element size, never overlap it
/// otherwise. Entries that return bool say whether something they produced is NaN or Inf.
namespace casync::codec {

/// One contribution to a sum: raw float32 values times `factor`, or a payload.
struct MergeSource {
  const float* raw = nullptr;
  float factor = 1.0F;
  const std::byte* payload = nullptr;
  const std::byte* payload_end = nullptr;
};

/// The words of the Philox counter and key that are common to one unit (R6).
struct RandomKey {
  std::uint64_t name_hash = 0;
  std::uint32_t sequence = 0;
  std::uint32_t round = 0;
  std::uint32_t stream = 0;      ///< rank and role
  std::uint64_t coordinate = 0;  ///< of the unit's first element; a multiple of 128
};

/// out = [addend +] factor * src, converted to float32; `addend` may be null.
using LoadRaw = bool (*)(const void* src, float factor, const float* addend, float* out, std::int64_t n);
/// dst = (src * first) * second, rounded to nearest even. `stream`: the stores bypass the caches, call fence() at the
/// end.
using StoreRaw = bool (*)(const float* src, float first, float second, void* dst, std::int64_t n, bool stream);
/// out = the sum of the sources, in order, over one unit of n elements; count >= 1. `stream` as above, and then `out`
/// is aligned to 64 bytes.
using Merge = bool (*)(const MergeSource* sources, std::int64_t count, float* out, std::int64_t n, bool stream);

/// What encodes one unit of a generated codec. x = accumulated + residual (or accumulated alone), y = x * mid; the
/// payload of y goes to `payload`, and x - D / mid to `residual`, if there is one.
struct UnitJob {
  const float* accumulated = nullptr;
  float* residual = nullptr;
  float mid = 1.0F;
  std::int64_t n = 0;
  std::byte* payload = nullptr;
  RandomKey key;
};

/// The inner loops that are generated from one CompLL file for one choice of the parameters that decide widths.
/// `encode` says whether y, or what was to be sent, is not finite; then the payload decodes to NaN and the residual is
/// as it was.
struct UnitKernels {
  bool (*encode)(const UnitJob& job) = nullptr;
  Merge merge = nullptr;
};

struct Kernels {
  LoadRaw load_raw[4];  ///< by DType: float32, float16, bfloat16, float64
  StoreRaw store_raw[4];
  Merge merge_raw[3];  ///< payloads are elements of float32, float16, bfloat16

  /// Orders non-temporal stores before whatever tells another thread that the data is there.
  void (*fence)();
};

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

/// How this processor reads long arrays fastest. True, on Intel: four 4 KiB pages side by side, fetched ahead by
/// software, since its prefetchers stop at the border of a page (seen on Sapphire Rapids). False, elsewhere: from front
/// to back and nothing else; on Zen 4 reading side by side loses a sixth, and fetching ahead a tenth.
bool pages_side_by_side();
void force_pages_side_by_side(bool chosen);  ///< for tests, as force_isa

/// The table of current_isa().
const Kernels& kernels();

}  // namespace casync::codec
