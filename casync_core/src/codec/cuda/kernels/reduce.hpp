#pragma once

#include "codec/cuda/kernels/lanes.hpp"

/// Reductions by the fixed tree (docs/compll.md): blocks of 1024 elements, element i of a block in lane i mod 16, lanes
/// folded 8, 4, 2, 1, blocks in order. A group of sixteen threads has a block, each of them one lane.
///
///   SumOf<float> sum{work};
///   tree(team, Blocks{length, length}, [&](std::int64_t i) { sum.see(x[i]); }, sum);
///   ... sum.value ...
namespace casync::codec::cuda {

struct Add {
  template <typename T>
  CASYNC_DEVICE T operator()(T a, T b) const {
    if constexpr (sizeof(T) == 8)
      return a + b;
    else
      return add(a, b);
  }
};
struct Smaller {
  template <typename T>
  CASYNC_DEVICE T operator()(T a, T b) const {
    return smaller(a, b);
  }
};
struct Larger {
  template <typename T>
  CASYNC_DEVICE T operator()(T a, T b) const {
    return larger(a, b);
  }
};

/// The blocks of an array, or of each of its chunks of `each` elements.
struct Blocks {
  std::int64_t length;
  std::int64_t each;

  CASYNC_DEVICE std::int64_t per_chunk() const { return each == 0 ? 0 : (each + 1023) / 1024; }
  CASYNC_DEVICE std::int64_t chunks() const { return each == 0 ? 0 : (length + each - 1) / each; }
  CASYNC_DEVICE std::int64_t count() const { return chunks() * per_chunk(); }
  CASYNC_DEVICE std::int64_t begin(std::int64_t block) const {
    return block / per_chunk() * each + block % per_chunk() * 1024;
  }
  CASYNC_DEVICE std::int64_t end(std::int64_t block) const {
    const std::int64_t chunk_end = smaller(block / per_chunk() * each + each, length);
    return smaller(begin(block) + 1024, chunk_end);
  }
};

/// Lane 0 of the group has the result.
template <typename Operation, typename Team, typename T>
CASYNC_DEVICE T fold(const Team& team, T value) {
  for (int distance = 8; distance > 0; distance /= 2) value = Operation{}(value, team.below(value, distance));
  return value;
}

/// Goes through all elements; `sums` are the reductions that `element` shows values to.
template <typename Team, typename Element, typename... Sums>
CASYNC_DEVICE void tree(const Team& team, const Blocks& blocks, const Element& element, Sums&... sums) {
  const int lane = team.rank() % 16;
  for (std::int64_t block = team.rank() / 16; block < blocks.count(); block += team.size() / 16) {
    (sums.open(), ...);
    const std::int64_t end = blocks.end(block);
    for (std::int64_t i = blocks.begin(block) + lane; i < end; i += 16) element(i);
    (sums.close(team, block), ...);
  }
  team.barrier();
  (sums.finish(team, blocks), ...);
  team.barrier();
  (sums.read(), ...);
  team.barrier();  // what they worked with is free again
}

/// What the blocks give is folded by `Operation` in their order: of the whole array to `value`, or of each chunk to
/// `to`.
template <typename Operation, typename T>
class Folded {
 public:
  T value{};

  CASYNC_DEVICE explicit Folded(float* work) : blocks_(reinterpret_cast<T*>(work)) {}
  CASYNC_DEVICE Folded(float* work, T* to, const Blocks& blocks)
      : blocks_(blocks.per_chunk() == 1 ? to : reinterpret_cast<T*>(work)), to_(to) {}

  CASYNC_DEVICE void open() { lane_ = T{}; }
  CASYNC_DEVICE void include(T one) { lane_ = Operation{}(one, lane_); }
  template <typename Team>
  CASYNC_DEVICE void close(const Team& team, std::int64_t block) {
    const T folded = fold<Operation>(team, lane_);
    if (team.rank() % 16 == 0) blocks_[block] = folded;
  }
  template <typename Team>
  CASYNC_DEVICE void finish(const Team& team, const Blocks& blocks) {
    if (to_ == nullptr) {
      if (team.rank() == 0) blocks_[0] = in_order(blocks_, blocks.count());
    } else if (to_ != blocks_) {
      for (std::int64_t chunk = team.rank(); chunk < blocks.chunks(); chunk += team.size())
        to_[chunk] = in_order(blocks_ + chunk * blocks.per_chunk(), blocks.per_chunk());
    }
  }
  CASYNC_DEVICE void read() {
    if (to_ == nullptr) value = blocks_[0];
  }

 private:
  CASYNC_DEVICE static T in_order(const T* from, std::int64_t count) {
    T all{};
    for (std::int64_t i = 0; i < count; ++i) all = Operation{}(all, from[i]);
    return all;
  }

  T* blocks_;
  T* to_ = nullptr;
  T lane_{};
};

template <typename T>
class SumOf : public Folded<Add, T> {
 public:
  using Folded<Add, T>::Folded;
  CASYNC_DEVICE void see(T one) { this->include(one); }
};
class LargestMagnitude : public Folded<Larger, float> {
 public:
  using Folded<Larger, float>::Folded;
  CASYNC_DEVICE void see(float one) { include(magnitude(one)); }
};

/// The smallest or the largest element. Lanes go through all blocks, from `start` on, and are folded last: of zeros
/// with different signs the order decides which one stays.
template <typename Operation>
class Extreme {
 public:
  float value = 0;

  CASYNC_DEVICE Extreme(float* work, float start) : lanes_(work), start_(start), lane_(start) {}

  CASYNC_DEVICE void open() { lane_ = start_; }
  CASYNC_DEVICE void see(float one) { lane_ = Operation{}(one, lane_); }
  template <typename Team>
  CASYNC_DEVICE void close(const Team& team, std::int64_t block) {
    lanes_[16 * block + team.rank() % 16] = lane_;
  }
  template <typename Team>
  CASYNC_DEVICE void finish(const Team& team, const Blocks& blocks) {
    if (team.rank() >= 16) return;
    float lane = start_;
    for (std::int64_t block = 0; block < blocks.count(); ++block)
      lane = Operation{}(lanes_[16 * block + team.rank()], lane);
    const float folded = fold<Operation>(team, lane);
    if (team.rank() == 0) lanes_[0] = folded;
  }
  CASYNC_DEVICE void read() { value = lanes_[0]; }

 private:
  float* lanes_;
  float start_;
  float lane_;
};

/// to[chunk] = the sum of the chunk's integers, a thread each: for chunks of a few elements.
template <typename Team, typename T, typename Element>
CASYNC_DEVICE void sum_chunks(const Team& team, const Blocks& blocks, T* to, const Element& element) {
  for (std::int64_t chunk = team.rank(); chunk < blocks.chunks(); chunk += team.size()) {
    const std::int64_t end = smaller((chunk + 1) * blocks.each, blocks.length);
    std::int32_t sum = 0;
    for (std::int64_t i = chunk * blocks.each; i < end; ++i) sum = add(sum, element(i));
    to[chunk] = static_cast<T>(sum);
  }
  team.barrier();
}

}  // namespace casync::codec::cuda
