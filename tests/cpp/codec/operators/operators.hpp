#pragma once

#include <cstdint>

/// The operators of codec/cpu/kernels/operators as functions, one table per instruction set as the codecs' kernels
/// have: they are of internal linkage, and compiled into what calls them. `operators.cc` fills the tables; like a
/// kernel it uses nothing of the standard library.
namespace casync::codec {

struct Operators {
  /// Appends the lanes of values and their indices that masks of sixteen bits choose; n is a multiple of 16.
  std::int64_t (*append)(const float* values, const std::uint16_t* masks, std::int64_t n, float* value_out,
                         std::int32_t* index_out);

  float (*nth_largest)(const float* values, std::int64_t n, std::int64_t k);
  float (*nth_smallest)(const float* values, std::int64_t n, std::int64_t k);
  std::int32_t (*nth_largest_integer)(const std::int32_t* values, std::int64_t n, std::int64_t k);
  std::int32_t (*nth_smallest_integer)(const std::int32_t* values, std::int64_t n, std::int64_t k);
  std::int64_t (*topk)(const float* values, std::int64_t n, std::int64_t k, std::int32_t* index_out, float* value_out,
                       std::int32_t* index_scratch, float* value_scratch);
  std::int64_t (*topk_integers)(const std::int32_t* values, std::int64_t n, std::int64_t k, std::int32_t* index_out,
                                std::int32_t* value_out, std::int32_t* index_scratch, std::int32_t* value_scratch);
};

namespace baseline {
extern const Operators kOperators;
}
namespace avx2 {
extern const Operators kOperators;
}
namespace avx512 {
extern const Operators kOperators;
}

}  // namespace casync::codec
