#pragma once

#include "codec/cuda/kernels/many.hpp"
#include "codec/cuda/kernels/scratch.hpp"

/// The threads that work through the program of one unit together: each runs all of it, and a barrier stands between
/// what some write and others read. Single values every thread computes for itself, from the same memory, so that all
/// take the same way; hence a branch needs no host.
///
/// `rank` and `size` are a thread's among the team's, `index` and `count` the team's among those of a launch. Sixteen
/// neighbours, from a rank that is a multiple of 16 on, are a group: `below` gives the value of the thread `distance`
/// further up in it. `scan` gives what `Operation` makes of the values of all lower ranks, and in `total` of all.
///
/// This header is all that only compilers for CUDA know of; tests/compll/cuda has another one that runs teams on the
/// CPU.
namespace casync::codec::cuda {

/// A block of threads.
template <int kThreads>
class BlockTeam {
 public:
  static constexpr int kBlock = kThreads;
  static constexpr bool kWide = false;

  __device__ explicit BlockTeam(std::int64_t* /*totals*/) {}

  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return kThreads; }
  __device__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ int count() const { return static_cast<int>(gridDim.x); }
  __device__ void barrier() const { __syncthreads(); }
  __device__ bool any(bool value) const { return __syncthreads_or(value ? 1 : 0) != 0; }
  __device__ void count_one(std::int32_t* counter) const { atomicAdd(counter, 1); }

  template <typename T>
  __device__ T below(T value, int distance) const {
    return __shfl_down_sync(0xffffU << (threadIdx.x & 16U), value, distance, 16);
  }

  template <typename Operation, typename T>
  __device__ T scan(T value, T neutral, T& total) const {
    constexpr unsigned kWarps = kThreads / 32;
    __shared__ T of_warp[kWarps];
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    T inclusive = value;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const T lower = __shfl_up_sync(kWholeWarp, inclusive, distance);
      if (lane >= distance) inclusive = Operation{}(lower, inclusive);
    }
    const T below_it = __shfl_up_sync(kWholeWarp, inclusive, 1);
    if (lane == 31) of_warp[warp] = inclusive;
    __syncthreads();
    T before = neutral;
    total = neutral;
    for (unsigned other = 0; other < kWarps; ++other) {
      if (other == warp) before = total;
      total = Operation{}(total, of_warp[other]);
    }
    __syncthreads();  // of_warp is free again
    return lane == 0 ? before : Operation{}(before, below_it);
  }

 private:
  static constexpr unsigned kWholeWarp = 0xffffffffU;
};

/// Several blocks, which all run at a time: a grid has as many blocks for each team as it is wide, and as many teams as
/// it is high. `totals` is the front of the scratch memory (scratch.hpp).
template <int kThreads>
class WideTeam {
 public:
  static constexpr int kBlock = kThreads;
  static constexpr bool kWide = true;

  __device__ explicit WideTeam(std::int64_t* totals)
      : totals_(totals + static_cast<std::int64_t>(blockIdx.y) * gridDim.x),
        arrived_(reinterpret_cast<unsigned*>(totals + kMostBlocks + blockIdx.y)) {}

  __device__ int rank() const { return static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(gridDim.x) * kBlock; }
  __device__ int index() const { return static_cast<int>(blockIdx.y); }
  __device__ int count() const { return static_cast<int>(gridDim.y); }
  __device__ void count_one(std::int32_t* counter) const { atomicAdd(counter, 1); }

  /// The last block to arrive opens the barrier for the others. It leaves no arrivals behind, so a launch of another
  /// number of blocks may follow.
  __device__ void barrier() const {
    __syncthreads();
    if (gridDim.x == 1) return;
    if (threadIdx.x == 0) {
      volatile unsigned* const opened = arrived_ + 1;
      const unsigned before = *opened;
      __threadfence();  // what the block has read and written comes before its arrival
      if (atomicAdd(arrived_, 1U) == gridDim.x - 1) {
        atomicExch(arrived_, 0U);
        __threadfence();
        *opened = before + 1;
      } else {
        while (*opened == before) __nanosleep(32);
      }
      __threadfence();  // and what it reads from here on comes after all arrivals
    }
    __syncthreads();
  }

  __device__ bool any(bool value) const {
    const int here = __syncthreads_or(value ? 1 : 0);
    if (gridDim.x == 1) return here != 0;
    if (threadIdx.x == 0) totals_[blockIdx.x] = here;
    barrier();
    bool found = false;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kBlock) found |= totals_[block] != 0;
    found = __syncthreads_or(found ? 1 : 0) != 0;
    barrier();
    return found;
  }

  template <typename T>
  __device__ T below(T value, int distance) const {
    return __shfl_down_sync(0xffffU << (threadIdx.x & 16U), value, distance, 16);
  }

  /// Within each block, and then in each block over the totals of all.
  template <typename Operation, typename T>
  __device__ T scan(T value, T neutral, T& total) const {
    const BlockTeam<kBlock> block(nullptr);
    T here = neutral;
    const T inside = block.template scan<Operation>(value, neutral, here);
    if (gridDim.x == 1) {
      total = here;
      return inside;
    }
    if (threadIdx.x == 0) totals_[blockIdx.x] = here;
    barrier();
    __shared__ T before;
    total = neutral;
    for (unsigned tile = 0; tile < gridDim.x; tile += kBlock) {
      const unsigned other = tile + threadIdx.x;
      const T of_other = other < gridDim.x ? static_cast<T>(totals_[other]) : neutral;
      T of_tile = neutral;
      const T lower = block.template scan<Operation>(of_other, neutral, of_tile);
      if (other == blockIdx.x) before = Operation{}(total, lower);
      total = Operation{}(total, of_tile);
    }
    barrier();
    return Operation{}(before, inside);
  }

 private:
  std::int64_t* totals_;
  unsigned* arrived_;  // and next to it how often the barrier was opened
};

}  // namespace casync::codec::cuda

/// A kernel, whose teams run `program(team, arguments, item)`. `totals` is the front of the scratch memory.
#define CASYNC_KERNEL(name, Team, Arguments, program)                                                             \
  extern "C" __global__ void __launch_bounds__(Team::kBlock)                                                      \
      name(const __grid_constant__ casync::codec::cuda::Many<Arguments> many, std::int64_t* totals) {             \
    casync::codec::cuda::work_off(                                                                                \
        Team(totals), many,                                                                                       \
        [](const Team& team, const Arguments& arguments, std::int64_t item) { program(team, arguments, item); }); \
  }
