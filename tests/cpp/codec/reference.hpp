#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "casync/types.hpp"

/// The definitions of ALGORITHMS once more, written for reading: scalar, double arithmetic, no shared code with the
/// codecs.
namespace casync::test::reference {

/// Element i of an array of `dtype`, exactly, as double; and the double nearest to `value` stored in it (to nearest
/// even for floats, truncated for integers).
double read(const std::byte* array, std::size_t i, DType dtype);
void write(std::byte* array, std::size_t i, DType dtype, double value);

/// The value of a float16 (`mantissa` = 10 bits, `exponent` = 5) or bfloat16 (7, 8) nearest to `value`, ties to even.
double round_to(double value, int mantissa, int exponent);

/// Adasum of vectors of one length: a tree in their order, in which who has no partner goes up as it is.
std::vector<double> adasum(const std::vector<std::vector<double>>& contributions);

/// onebit: the groups of a gradient as [begin, end).
std::vector<std::pair<std::int64_t, std::int64_t>> onebit_groups(Shape shape);

/// Philox4x32-7's output word for a counter and key (Salmon et al. 2011, written from the paper's listing).
struct Words {
  std::uint32_t word[4];
};
Words philox7(Words counter, std::uint32_t key0, std::uint32_t key1);

/// The 16-bit draw of a coordinate, as terngrad documents it.
std::uint32_t draw(std::uint64_t name_hash, std::uint32_t sequence, std::uint32_t round, std::uint32_t stream,
                   std::int64_t coordinate);

}  // namespace casync::test::reference
