#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codec/cuda/device_kernels.hpp"

#if defined(ON_DEVICE)
#include <cuda.h>
#else
#include "lockstep_kernel.hpp"
#include "turns.hpp"
#endif

/// Memory that kernels can reach, and launches by the table of a codec: on the first device by CUDA's driver, or in
/// lockstep on the CPU.
namespace device {

#if defined(ON_DEVICE)
inline void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: error %d\n", call, static_cast<int>(result));
  std::exit(2);
}
/// A function of the driver, which is no part of a toolkit, so it is found at run time.
inline void* function_of_driver(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* const found = driver == nullptr ? nullptr : dlsym(driver, name);
  if (found != nullptr) return found;
  std::fprintf(stderr, "no %s in libcuda.so.1\n", name);
  std::exit(2);
}
#define TEXT_OF(name) #name  // of what cuda.h makes of a name, such as cuMemAlloc_v2
#define CALL(name, ...) \
  check(reinterpret_cast<decltype(&name)>(function_of_driver(TEXT_OF(name)))(__VA_ARGS__), TEXT_OF(name))

inline CUdevice number = 0;
inline CUmodule module = nullptr;

/// Before anything else: takes the device's code from a file.
inline void load(const char* cubin) {
  CUcontext context = nullptr;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &number, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, number);
  CALL(cuCtxSetCurrent, context);
  CALL(cuModuleLoad, &module, cubin);
}
inline void* allocate(std::size_t bytes) {
  CUdeviceptr pointer = 0;
  CALL(cuMemAlloc, &pointer, bytes > 0 ? bytes : 1);
  return reinterpret_cast<void*>(pointer);
}
inline void release(void* pointer) { CALL(cuMemFree, reinterpret_cast<CUdeviceptr>(pointer)); }
inline void copy_to(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) CALL(cuMemcpyHtoD, reinterpret_cast<CUdeviceptr>(to), from, bytes);
}
inline void copy_from(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) CALL(cuMemcpyDtoH, to, reinterpret_cast<CUdeviceptr>(from), bytes);
}
template <typename Arguments>
void run(const casync::codec::cuda::DeviceKernel& kernel, const Arguments& arguments, std::int64_t longest, int teams,
         std::byte* scratch) {
  CUfunction function = nullptr;
  CALL(cuModuleGetFunction, &function, module, kernel.name);
  void* given[]{const_cast<Arguments*>(&arguments), &scratch};
  const auto threads = static_cast<unsigned>(kernel.threads);
  if (kernel.grid == casync::codec::cuda::Grid::wide) {
    int processors = 0;
    int blocks = 0;
    CALL(cuDeviceGetAttribute, &processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, number);
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, &blocks, function, kernel.threads, 0);
    const auto grid = casync::codec::cuda::divide(kernel, teams, longest, blocks * processors);
    CALL(cuLaunchCooperativeKernel, function, static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.teams), 1,
         threads, 1, 1, 0, nullptr, given);
  } else {
    CALL(cuLaunchKernel, function, static_cast<unsigned>(teams), 1, 1, threads, 1, 1, 0, nullptr, given, nullptr);
  }
}
#else
/// `order`: "1" lets the last thread that can go on do so, not the first.
inline void load(const char* order) { casync::codec::cuda::backwards = *order == '1'; }

/// Pointers to device memory have a bit that makes them point nowhere, until a launch takes it off those that
/// visit_pointers shows it.
inline constexpr std::uintptr_t kBit = std::uintptr_t{1} << 47;

template <typename T>
T* with_bit(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) | kBit);
}
template <typename T>
T* without_bit(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) & ~kBit);
}
inline void* allocate(std::size_t bytes) { return with_bit(std::malloc(bytes > 0 ? bytes : 1)); }
inline void release(void* pointer) { std::free(without_bit(pointer)); }
inline void copy_to(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(without_bit(to), from, bytes);
}
inline void copy_from(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, without_bit(from), bytes);
}
inline void take_bit(void* /*context*/, void** pointer) { *pointer = without_bit(*pointer); }
/// Kernels are found under their names, since the program exports its symbols.
template <typename Arguments>
void run(const casync::codec::cuda::DeviceKernel& kernel, Arguments arguments, std::int64_t /*longest*/, int teams,
         std::byte* /*scratch*/) {
  const auto* const entry = static_cast<const casync::codec::cuda::LockstepKernel*>(dlsym(RTLD_DEFAULT, kernel.name));
  if (entry == nullptr || entry->threads != kernel.threads || entry->argument_bytes != kernel.argument_bytes ||
      entry->wide != (kernel.grid == casync::codec::cuda::Grid::wide)) {
    std::fprintf(stderr, "kernel %s is not as the table has it\n", kernel.name);
    std::exit(2);
  }
  entry->visit(&arguments, nullptr, take_bit);
  entry->run(&arguments, teams, nullptr, take_bit);
}
#endif

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    copy_to(data_, values.data(), size_ * sizeof(T));
  }
  explicit DeviceArray(std::size_t size) : size_(size), data_(static_cast<T*>(allocate(size * sizeof(T)))) {}
  DeviceArray(DeviceArray&& other) noexcept : size_(other.size_), data_(other.data_) { other.data_ = nullptr; }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) release(data_);
  }

  T* data() const { return data_; }
  std::vector<T> copy() const {
    std::vector<T> values(size_);
    copy_from(values.data(), data_, size_ * sizeof(T));
    return values;
  }

 private:
  std::size_t size_;
  T* data_;
};

/// Runs a kernel over so many items of one gradient. Each second time its arguments lie in the device's memory, behind
/// those of a gradient that has none.
template <typename Arguments>
void launch(const casync::codec::cuda::DeviceKernel& kernel, std::int64_t items, const Arguments& arguments,
            std::int64_t longest, int teams, std::byte* scratch) {
  using casync::codec::cuda::Many;
  if (kernel.name == nullptr || kernel.argument_bytes != static_cast<std::int64_t>(sizeof(Many<Arguments>))) {
    std::fprintf(stderr, "the table has no kernel for these arguments\n");
    std::exit(2);
  }
  if (items == 0) return;
  static bool alone = false;
  alone = !alone;
  if (alone) return run(kernel, Many<Arguments>{.items = items, .only = arguments}, longest, teams, scratch);
  const DeviceArray<Arguments> each(std::vector<Arguments>{arguments, arguments});
  const DeviceArray<std::int64_t> first(std::vector<std::int64_t>{0, 0, items});
  run(kernel, Many<Arguments>{.each = each.data(), .first = first.data(), .count = 2, .items = items}, longest, teams,
      scratch);
}
/// Over `units`, whose scratch memory it takes; of some kernels all of them are one item.
template <typename Arguments>
void launch(const casync::codec::cuda::DeviceKernel& kernel, const casync::codec::cuda::Units& units,
            const Arguments& arguments, bool one_item = false) {
  const auto teams = static_cast<int>(teams_of(units));
  launch(kernel, one_item && units.count > 0 ? 1 : units.count, arguments, units.longest, teams, units.scratch);
}

}  // namespace device
