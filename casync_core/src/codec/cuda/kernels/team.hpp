#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cub/block/block_scan.cuh>

/// The threads that work through the program of one unit together: each runs all of it, and a barrier stands between
/// what some write and others read. Single values every thread computes for itself, from the same memory, so that all
/// take the same way; hence a branch needs no host.
///
/// `rank` and `size` are a thread's among the team's, `index` and `count` the team's among those of a launch. Sixteen
/// neighbours, from a rank that is a multiple of 16 on, are a group: `below` gives the value of the thread `distance`
/// further up in it. `scan` gives what `Operation` makes of the values of all lower ranks, and in `total` of all.
///
/// This header is all that only nvcc knows of; tests/compll/cuda has another one that runs teams on the CPU.
namespace casync::codec::cuda {

using Status = cudaError_t;
using Stream = cudaStream_t;

/// The most blocks of a cooperative launch.
constexpr int kMostBlocks = 1024;

/// A block of threads.
template <int kThreads>
class BlockTeam {
 public:
  static constexpr int kBlock = kThreads;
  static constexpr bool kWholeGrid = false;

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
    using Scan = cub::BlockScan<T, kThreads>;
    __shared__ typename Scan::TempStorage storage;
    T before = neutral;
    Scan(storage).ExclusiveScan(value, before, neutral, Operation{}, total);
    __syncthreads();
    return before;
  }
};

/// All blocks of a cooperative launch. `totals` has a place for each of them.
class GridTeam {
 public:
  static constexpr int kBlock = 256;
  static constexpr bool kWholeGrid = true;

  __device__ explicit GridTeam(std::int64_t* totals) : totals_(totals) {}

  __device__ int rank() const { return static_cast<int>(blockIdx.x) * kBlock + static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(gridDim.x) * kBlock; }
  __device__ int index() const { return 0; }
  __device__ int count() const { return 1; }
  __device__ void barrier() const { cooperative_groups::this_grid().sync(); }
  __device__ void count_one(std::int32_t* counter) const { atomicAdd(counter, 1); }

  __device__ bool any(bool value) const {
    const int here = __syncthreads_or(value ? 1 : 0);
    if (threadIdx.x == 0) totals_[blockIdx.x] = here;
    barrier();
    bool found = false;
    for (unsigned block = 0; block < gridDim.x; ++block) found |= totals_[block] != 0;
    barrier();
    return found;
  }

  template <typename T>
  __device__ T below(T value, int distance) const {
    return __shfl_down_sync(0xffffU << (threadIdx.x & 16U), value, distance, 16);
  }

  template <typename Operation, typename T>
  __device__ T scan(T value, T neutral, T& total) const {
    T here = neutral;
    const T inside = BlockTeam<kBlock>(nullptr).scan<Operation>(value, neutral, here);
    if (threadIdx.x == 0) totals_[blockIdx.x] = here;
    barrier();
    T before = neutral;
    total = neutral;
    for (unsigned block = 0; block < gridDim.x; ++block) {
      if (block == blockIdx.x) before = total;
      total = Operation{}(total, static_cast<T>(totals_[block]));
    }
    barrier();
    return Operation{}(before, inside);
  }

 private:
  std::int64_t* totals_;
};

template <typename Team, typename Work>
__global__ void __launch_bounds__(Team::kBlock) run_team(const __grid_constant__ Work work, std::int64_t* totals) {
  work(Team(totals));
}

/// Runs `work(team)` by each of `teams` teams, or by one of the whole device; `totals` has kMostBlocks places. What is
/// returned are errors of the launch alone.
template <typename Team, typename Work>
Status launch(const Work& work, std::int64_t teams, std::int64_t* totals, Stream stream) {
  if (teams == 0) return cudaSuccess;
  if constexpr (Team::kWholeGrid) {
    int device = 0;
    int processors = 0;
    int blocks = 0;
    Status status = cudaGetDevice(&device);
    if (status == cudaSuccess) status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (status == cudaSuccess)
      status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, run_team<Team, Work>, Team::kBlock, 0);
    if (status != cudaSuccess) return status;
    const int all = blocks * processors < kMostBlocks ? blocks * processors : kMostBlocks;
    const void* arguments[]{&work, &totals};
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(run_team<Team, Work>),
                                       dim3(static_cast<unsigned>(all)), dim3(Team::kBlock),
                                       const_cast<void**>(arguments), 0, stream);
  } else {
    run_team<Team, Work><<<static_cast<unsigned>(teams), Team::kBlock, 0, stream>>>(work, totals);
    return cudaGetLastError();
  }
}

}  // namespace casync::codec::cuda
