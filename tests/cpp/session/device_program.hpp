#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "casync/session.hpp"
#include "cuda/device.hpp"
#include "standin/standin.hpp"

extern "C" casync::cuda::Result cuMemAlloc_v2(casync::cuda::DevicePointer* address, std::size_t bytes);
extern "C" casync::cuda::Result cuMemFree_v2(casync::cuda::DevicePointer address);

/// What tests have on the stand-in's device: a program as a framework would be, and its tensors.
namespace casync::test {

constexpr int kKernel = 25;  ///< how long a program's kernel takes, in ms

/// As a framework has a device: its context, and a stream to compute on.
class Program {
 public:
  explicit Program(int device = 0) : device_(driver(), device), current_(device_), stream_(device_.make_stream()) {}
  ~Program() {
    synchronize();
    driver().cuStreamDestroy_v2(stream_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  static const cuda::Driver& driver() {
    setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1);
    return cuda::driver();
  }
  DeviceStream here() const { return {device_.ordinal(), stream_}; }
  void synchronize() const { driver().cuStreamSynchronize(stream_); }

 private:
  cuda::Device device_;
  cuda::Device::Current current_;
  cuda::Stream stream_;
};

/// Floats on the device of a program.
class Floats {
 public:
  Floats(const Program& program, std::size_t count) : program_(program), count_(count) {
    EXPECT_EQ(cuMemAlloc_v2(&address_, std::max<std::size_t>(count, 1) * sizeof(float)), 0);
  }
  ~Floats() {
    program_.synchronize();
    cuMemFree_v2(address_);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t count() const { return count_; }

  /// A kernel that writes `value` and those that follow it.
  void write(float value) const {
    struct Kernel {
      float* to;
      std::size_t count;
      float value;
    };
    launch(new Kernel{kernel_side(), count_, value}, [](void* argument) {
      const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
      std::iota(kernel->to, kernel->to + kernel->count, kernel->value);
    });
  }
  /// Those values, at once.
  void assign(const std::vector<float>& values) const {
    std::memcpy(kernel_side(), values.data(), values.size() * sizeof(float));
  }
  /// Those values, by a kernel.
  void assign_slowly(const std::vector<float>& values) const {
    struct Kernel {
      float* to;
      std::vector<float> values;
    };
    const auto body = [](void* argument) {
      const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
      std::memcpy(kernel->to, kernel->values.data(), kernel->values.size() * sizeof(float));
    };
    launch(new Kernel{kernel_side(), values}, body, 12 * kKernel);
  }
  /// What a kernel sees that is launched now.
  std::vector<float> read() const {
    struct Kernel {
      const float* from;
      std::vector<float> seen;
    } kernel{kernel_side(), std::vector<float>(count_)};
    standin_launch(
        program_.here().stream,
        [](void* argument) {
          auto& of = *static_cast<Kernel*>(argument);
          std::memcpy(of.seen.data(), of.from, of.seen.size() * sizeof(float));
        },
        &kernel, 0);
    program_.synchronize();
    return kernel.seen;
  }

 private:
  float* kernel_side() const {
    return reinterpret_cast<float*>(static_cast<std::int64_t>(address_) + standin_distance());
  }
  template <typename Kernel>
  void launch(Kernel* kernel, void (*body)(void*), int milliseconds = kKernel) const {
    standin_launch(program_.here().stream, body, kernel, milliseconds);
  }

  const Program& program_;
  std::size_t count_;
  cuda::DevicePointer address_ = 0;
};

inline std::vector<float> following(float first, std::size_t count, float factor) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = (first + static_cast<float>(i)) * factor;
  return values;
}

/// Submits, waits, and has the program's stream wait.
inline void run_on(Session& session, std::uint32_t registration, const Program& program, const void* input,
                   void* output) {
  const auto handle = session.submit(registration, input, output, 0, true, {}, program.here());
  while (!session.wait(handle, 1'000'000'000)) {
  }
  session.order_after(handle, program.here().stream);
  session.collect(handle);
}

}  // namespace casync::test
