#include "memory.hpp"

#include <random>

namespace casync::bench {
namespace {

constexpr std::size_t kSteps = 32;          ///< whose gradients differ
constexpr std::size_t kShift = 128 * 1024;  ///< elements from one step's gradient to the next

}  // namespace

Memory::Memory(std::size_t bytes) : owned_(new std::byte[bytes + 64]()) {
  const auto past = reinterpret_cast<std::uintptr_t>(owned_.get()) % 64;
  bytes_ = {owned_.get() + (64 - past) % 64, bytes};
}

Buffers::Buffers(Shape gradient_shape)
    : shape(gradient_shape),
      out(static_cast<std::size_t>(shape.numel()) * sizeof(float)),
      numbers_(out.bytes().size() + (kSteps - 1) * kShift * sizeof(float)) {
  std::mt19937_64 engine(1);
  std::normal_distribution<float> normal;
  for (float& value : numbers_.floats()) value = normal(engine);
}

std::span<const float> Buffers::gradient(std::uint32_t step) const {
  return numbers_.floats().subspan(step % kSteps * kShift, static_cast<std::size_t>(shape.numel()));
}

}  // namespace casync::bench
