#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "casync/types.hpp"

namespace casync::codec {

/// Adasum (Maleki et al., MLSys 2021) of the contributions to one gradient. Of two vectors it is
///
///     (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b
///
/// which is their sum where they are orthogonal and their mean where they are equal; a vector of zeros adds nothing. Of
/// more it is a tree over the contributions in their order: 0 with 1, 2 with 3, then the one pair with the other. Who
/// has no partner goes up as it is, so any number of them will do.
///
/// The two factors of a pair need dot products over whole vectors. So the contributions are read once for each level of
/// the tree and once more for the result, block by block; what is between is computed anew each time, in double, and
/// never stored. Products are added in eight lanes, blocks in order, so every rank finds the same bits.
class Adasum {
 public:
  static constexpr std::int64_t kLongestBlock = 1024;

  /// Runs over `range`: `read(block, values)` writes the elements of every contribution, one contribution after the
  /// other, and `write(block, values)` takes those of the result. A thread keeps what it needs for the next run.
  template <typename Read, typename Write>
  static void run(std::size_t contributions, const Range& range, const Read& read, const Write& write) {
    Adasum& tree = start(contributions);
    for (std::size_t stride = 1;; stride *= 2) {
      const bool complete = stride >= contributions;
      for (std::int64_t begin = range.begin; begin < range.end; begin += kLongestBlock) {
        const Range block{begin, std::min(begin + kLongestBlock, range.end)};
        read(block, tree.values_.data());
        tree.fold(stride, block.size());
        if (complete)
          write(block, static_cast<const double*>(tree.values_.data()));
        else
          tree.measure(stride, block.size());
      }
      if (complete) return;
      tree.settle(stride);
    }
  }

 private:
  static constexpr std::int64_t kLanes = 8;
  struct Dots {
    double aa[kLanes]{};
    double ab[kLanes]{};
    double bb[kLanes]{};
  };
  struct Factors {
    double a = 1;
    double b = 1;
  };

  static Adasum& start(std::size_t contributions);
  void fold(std::size_t stride, std::int64_t n);
  void measure(std::size_t stride, std::int64_t n);
  void settle(std::size_t stride);

  // Contributions i and i + stride are a pair of the level, for every i that is a multiple of 2 * stride. Its result
  // takes the place of i, so i + stride names the pair.
  std::size_t contributions_ = 0;
  std::vector<double> values_;
  std::vector<Dots> dots_;
  std::vector<Factors> factors_;
};

}  // namespace casync::codec
