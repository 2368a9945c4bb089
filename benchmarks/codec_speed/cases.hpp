#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"

namespace casync::bench {

/// Memory from the beginning of a cache line on, as frameworks align their tensors; zeroed, so every page is touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes);

  std::span<std::byte> bytes() const { return bytes_; }
  std::span<float> floats() const { return {reinterpret_cast<float*>(bytes_.data()), bytes_.size() / sizeof(float)}; }

 private:
  std::unique_ptr<std::byte[]> owned_;
  std::span<std::byte> bytes_;
};

/// What all cases work on.
struct Buffers {
  explicit Buffers(Shape shape);

  Shape shape;
  Memory gradient;
  Memory out;
  Memory residual;  ///< also the accumulator of decode+merge: what is updated in place
};

/// The least that a ratio should be; 0: nobody asked for one.
struct Goals {
  double to_memcpy = 0;
  double to_bare = 0;
};

/// One operation of one codec on a gradient in memory, and the bare loop of the same work (bare.hpp).
struct Case {
  std::string operation;
  Goals goals;
  std::function<void()> run;
  std::function<void()> bare;
};

/// Encode (with feedback where the codec has it), decode, decode+merge in place, and what the owner of a partition does
/// among 4 ranks: merge of three payloads and its own contribution, then the same with an encode of the mean. They hold
/// the memory of their payloads.
std::vector<Case> make_cases(const std::string& codec, Buffers& buffers);

}  // namespace casync::bench
