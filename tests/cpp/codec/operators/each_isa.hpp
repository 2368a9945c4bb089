#pragma once

#include "../support.hpp"
#include "operators.hpp"

namespace casync::test {

/// The lengths at which blocks, vectors and tails begin and end.
constexpr std::int64_t kLengths[]{0, 1, 2, 15, 16, 17, 63, 64, 65, 1000, 1023, 1024, 1025, 4099, 1 << 20};

/// Calls `body` with the operators of each instruction set that this processor offers.
template <typename Body>
void with_each_isa(const Body& body) {
  const codec::Operators* const tables[]{
      &codec::baseline::kOperators,
#if defined(CASYNC_X86_KERNELS)
      &codec::avx2::kOperators,
      &codec::avx512::kOperators,
#endif
  };
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) {
    SCOPED_TRACE("isa " + std::to_string(isa));
    body(*tables[isa]);
  }
}

/// Numbers that operators over floats get wrong first.
enum class Kind { random, ties, equal, zeros, subnormal };
constexpr Kind kKinds[]{Kind::random, Kind::ties, Kind::equal, Kind::zeros, Kind::subnormal};
std::vector<float> values_of(Kind kind, std::int64_t n);

/// docs/compll.md's sum of an array: blocks of 1024, sixteen lanes, folded 8 4 2 1, blocks in order.
float tree_sum(const std::vector<float>& x);

}  // namespace casync::test
