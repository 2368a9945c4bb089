#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "codec/cuda/kernels/many.hpp"
#include "cuda/arena.hpp"
#include "cuda/module.hpp"

namespace casync::codec::cuda {

/// What is to run on a stream, in order: kernels over several gradients each, copies between them. It is written down
/// first, because the arguments of all kernels go to the device in one copy.
class Launches {
 public:
  explicit Launches(const casync::cuda::Driver& driver) : driver_(driver) {}

  /// `arguments` of each gradient, and how many `items` each has. `scratch`: the front of the scratch memory.
  template <typename Arguments>
  void add(casync::cuda::Function function, const casync::cuda::Grid& grid, std::byte* scratch,
           const std::vector<Arguments>& arguments, std::span<const std::int64_t> items);
  void zero(std::byte* memory, std::size_t bytes);
  void copy_to_device(std::byte* to, const std::byte* from, std::size_t bytes);
  void copy_to_host(std::byte* to, const std::byte* from, std::size_t bytes);

  /// Of the arguments that go to the device: none where all kernels have one gradient.
  std::size_t argument_bytes() const { return arguments_.size(); }
  /// Launches all of it. `pinned`: room for the arguments, until the stream has come so far; `arena` is the stream's.
  /// Throws DeviceFailure.
  void run(std::byte* pinned, casync::cuda::Arena& arena, casync::cuda::Stream stream);

 private:
  using Step = std::function<void(const casync::cuda::Driver&, const std::byte* arguments, casync::cuda::Stream)>;

  /// Where in the arguments it is.
  template <typename T>
  std::size_t keep(const std::vector<T>& values) {
    const std::size_t at = arguments_.size();
    arguments_.resize(at + (values.size() * sizeof(T) + 15) / 16 * 16);
    std::memcpy(arguments_.data() + at, values.data(), values.size() * sizeof(T));
    return at;
  }
  const casync::cuda::Driver& driver_;
  std::vector<Step> steps_;
  std::vector<std::byte> arguments_;
};

template <typename Arguments>
void Launches::add(casync::cuda::Function function, const casync::cuda::Grid& grid, std::byte* scratch,
                   const std::vector<Arguments>& arguments, std::span<const std::int64_t> items) {
  std::vector<std::int64_t> first{0};
  for (const std::int64_t own : items) first.push_back(first.back() + own);
  Many<Arguments> many{.count = static_cast<std::int64_t>(arguments.size()), .items = first.back()};
  if (many.count == 1) {
    many.only = arguments[0];
    steps_.push_back([=](const casync::cuda::Driver& driver, const std::byte*, casync::cuda::Stream stream) mutable {
      void* given[]{&many, &scratch};
      casync::cuda::launch(driver, function, grid, given, stream);
    });
    return;
  }
  const std::size_t each = keep(arguments);
  const std::size_t begins = keep(first);
  steps_.push_back([=](const casync::cuda::Driver& driver, const std::byte* kept, casync::cuda::Stream stream) mutable {
    many.each = reinterpret_cast<const Arguments*>(kept + each);
    many.first = reinterpret_cast<const std::int64_t*>(kept + begins);
    void* given[]{&many, &scratch};
    casync::cuda::launch(driver, function, grid, given, stream);
  });
}

}  // namespace casync::codec::cuda
