#pragma once

#include <cstdint>

#include "codec/unit.hpp"

/// What the kernels of report.hpp are launched with, as arguments.hpp has it for those of codecs.
namespace casync::codec::cuda {

/// What a device tells the host of a segment, in pinned memory: there when its stream has come so far.
struct SegmentReport {
  std::int64_t payload_bytes = 0;
  std::int32_t nonfinite = 0;  ///< as Segment has it
  std::int32_t refused = -1;   ///< the first source whose payload is not the codec's
  std::int32_t overflow = 0;   ///< a unit needs more than its bound
};

/// Values of float32 that are where they go already.
struct LookBatch {
  const float* values = nullptr;
  std::int64_t n = 0;
  SegmentReport* report = nullptr;
};
template <typename F>
void visit_pointers(LookBatch& batch, const F& f) {
  f(batch.values);
  f(batch.report);
}
static_assert(sizeof(LookBatch) == 24, "visit_pointers lists each pointer");

/// What came of the units of an encode.
struct EncodedBatch {
  const EncodedUnit* encoded = nullptr;
  const std::int64_t* at = nullptr;  ///< where each payload begins, and the end of the last
  std::int64_t count = 0;
  SegmentReport* report = nullptr;
};
template <typename F>
void visit_pointers(EncodedBatch& batch, const F& f) {
  f(batch.encoded);
  f(batch.at);
  f(batch.report);
}
static_assert(sizeof(EncodedBatch) == 32, "visit_pointers lists each pointer");

/// What came of the units of a decode: each must have used all of its payload, and together all of the source.
struct DecodedBatch {
  const std::int64_t* used = nullptr;
  const std::int64_t* at = nullptr;
  std::int64_t count = 0;
  std::int64_t bytes = 0;  ///< of the source
  std::int32_t source = 0;
  SegmentReport* report = nullptr;
};
template <typename F>
void visit_pointers(DecodedBatch& batch, const F& f) {
  f(batch.used);
  f(batch.at);
  f(batch.report);
}
static_assert(sizeof(DecodedBatch) == 48, "visit_pointers lists each pointer");

}  // namespace casync::codec::cuda
