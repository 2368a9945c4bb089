#pragma once

#include <thread>

#include "turns.hpp"

/// The words of CUDA that the core's team.hpp is made of, on the CPU: a block is a thread, in which the block's own
/// threads take turns (turns.hpp), so that blocks run beside each other and memory that they share is really contended.
namespace words {

struct Place {
  unsigned x, y;
};
inline thread_local casync::codec::cuda::Turns* turns = nullptr;
inline thread_local Place block{};
inline Place grid{};

inline int rank() { return turns->current(); }

/// What thread `of(rank)` of the group of `size` neighbours gives.
template <typename T, typename Of>
T shuffled(T value, int size, const Of& of) {
  const int own = rank();
  __builtin_memcpy(&turns->slot(own), &value, sizeof value);
  turns->wait_in_group(own, size);
  T other{};
  __builtin_memcpy(&other, &turns->slot(of(own)), sizeof other);
  turns->wait_in_group(own, size);
  return other;
}

}  // namespace words

#define __device__
#define __shared__ static thread_local
#define threadIdx (words::Place{static_cast<unsigned>(words::rank()), 0})
#define blockIdx (words::block)
#define gridDim (words::grid)

inline void __syncthreads() { words::turns->wait(words::rank()); }
inline int __syncthreads_or(int value) {
  thread_local int found = 0;
  if (words::rank() == 0) found = 0;
  __syncthreads();
  found |= value;
  __syncthreads();
  const int all = found;
  __syncthreads();
  return all;
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  return words::shuffled(value, 32, [&](int own) {
    const int by = static_cast<int>(distance);
    return own % 32 < by ? own : own - by;
  });
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int distance, int width) {
  return words::shuffled(value, width, [&](int own) { return own % width + distance < width ? own + distance : own; });
}
template <typename T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <typename T>
T atomicExch(T* to, T value) {
  return __atomic_exchange_n(to, value, __ATOMIC_RELAXED);
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __nanosleep(unsigned) { std::this_thread::yield(); }
