#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

/// An array where kernels can reach it.
#if defined(__CUDACC__)
#include <cuda_runtime_api.h>

inline void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(2);
}
inline void* device_allocate(std::size_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes > 0 ? bytes : 1));
  return pointer;
}
inline void device_free(void* pointer) { check(cudaFree(pointer)); }
inline void device_copy(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}
#else
inline void check(int status) {
  if (status != 0) std::exit(2);
}
inline void* device_allocate(std::size_t bytes) { return std::malloc(bytes > 0 ? bytes : 1); }
inline void device_free(void* pointer) { std::free(pointer); }
inline void device_copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
#endif

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    device_copy(data_, values.data(), size_ * sizeof(T));
  }
  explicit DeviceArray(std::size_t size) : size_(size), data_(static_cast<T*>(device_allocate(size * sizeof(T)))) {}
  DeviceArray(DeviceArray&& other) noexcept : size_(other.size_), data_(other.data_) { other.data_ = nullptr; }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() {
    if (data_ != nullptr) device_free(data_);
  }

  T* data() const { return data_; }
  std::vector<T> copy() const {
    std::vector<T> values(size_);
    device_copy(values.data(), data_, size_ * sizeof(T));
    return values;
  }

 private:
  std::size_t size_;
  T* data_;
};
