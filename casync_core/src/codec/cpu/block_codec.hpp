#pragma once

#include <cstdint>
#include <span>

#include "casync/codec.hpp"
#include "codec/cpu/kernels/kernels.hpp"

namespace casync::codec {

/// What a driven codec is given of a segment: one block, a whole number of its units.
struct BlockJob {
  const Segment& segment;
  Range range;
  bool stream = false;  ///< the payload is large and not read again: its stores may bypass the caches
};

/// Drives a codec over a segment in blocks of whole units that stay in the processor's caches: accumulate the
/// contributions of a block, encode it, decode what was written, go on. A codec implements the three operations on a
/// block and its payload length.
///
/// Within a block everything that is read from the gradient's memory is read before raw_out is written, so raw_out may
/// be the very memory of a raw source. A float32 contribution that is alone, raw and unscaled is read in place.
class BlockCodec : public Codec {
 public:
  static constexpr std::int64_t kLongestBlock = 16384;

  void run(std::span<Segment> segments) const override;

 protected:
  /// Elements of a block, at least the longest unit and at most kLongestBlock. The default keeps a block and the units'
  /// own scratch in a first-level cache.
  virtual std::int64_t block() const { return 4096; }

  struct Encoded {
    std::size_t bytes = 0;
    bool nonfinite = false;
  };
  /// payload = E(y) and residual = x - D/mid for x = accumulated + residual, y = x * mid. `payload` has room for
  /// bound().
  virtual Encoded encode(const BlockJob& job, const float* accumulated, float* residual, std::byte* payload) const = 0;

  /// Writes the sum of `sources`, in order, over the block to `out`, and moves every source past the block; returns
  /// whether some sum is NaN or Inf. `out` may be a raw source's memory. Throws CorruptPayload where the bytes cannot
  /// be this codec's; one of fixed size may rely on there being enough. `stream`: `out` is large, aligned to a cache
  /// line and read by nobody soon, so its stores may bypass the caches; only where fills_cache_lines().
  virtual bool merge(const BlockJob& job, std::span<MergeSource> sources, float* out, bool stream) const = 0;

  /// values * factor * post to `out` as elements of `dtype`; returns whether one is NaN or Inf.
  virtual bool store(const float* values, DType dtype, float factor, float post, void* out, std::int64_t n,
                     bool stream) const;

  /// Whether all units but the gradient's last fill whole cache lines of float32.
  virtual bool fills_cache_lines(const Shape& /*shape*/) const { return true; }

  /// A segment that the blocks do not fit (other reductions, other dtypes): true if the codec has done it by itself.
  virtual bool run_otherwise(Segment& /*segment*/) const { return false; }

 private:
  class Pass;
};

/// Moves sources past a unit of `elements` elements and `bytes` payload bytes.
inline void advance(std::span<MergeSource> sources, std::int64_t elements, std::int64_t bytes) {
  for (MergeSource& source : sources) {
    if (source.raw != nullptr)
      source.raw += elements;
    else
      source.payload += bytes;
  }
}

/// CorruptPayload: "onebit: a payload of 12 bytes where 25 were expected, for elements [0, 136) of a 17 x 8 gradient".
[[noreturn]] void throw_corrupt(const CodecInfo& info, const Segment& segment, std::size_t found, std::size_t expected);

/// InternalError unless the segment asks for something that can be done: outputs there and large enough, raw lengths
/// right, CorruptPayload unless payloads of a codec of fixed size have the right length.
void check_segment(const Codec& codec, const Segment& segment);

}  // namespace casync::codec
