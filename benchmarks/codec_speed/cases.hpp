#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"

namespace casync::bench {

/// Bytes that an operation must move through memory, by kind, per element of the gradient.
struct Traffic {
  double read = 0;    ///< read only
  double update = 0;  ///< read and written in place
  double write = 0;   ///< written only
};

/// One operation of one codec on a gradient in memory.
struct Case {
  std::string codec;
  std::string operation;
  double goal = 0;  ///< wanted ratio to memcpy of the gradient
  Traffic traffic;
  std::function<void()> run;
};

/// The gradient, and buffers of its size that the cases share; every page is touched.
struct Buffers {
  explicit Buffers(Shape shape);

  Shape shape;
  std::span<float> gradient;
  std::span<float> out;
  std::span<float> residual;
  std::vector<std::byte> payload;
  std::vector<std::byte> peer[3];  ///< payloads of three other ranks

 private:
  std::vector<float> memory_[3];  ///< aligned to cache lines, as frameworks align their tensors
};

/// Encode, decode, merge of three payloads and an own raw contribution, and the owner's merge+encode, for `codec`.
std::vector<Case> make_cases(const std::string& codec, Buffers& buffers);

/// The plainest loop that moves the same bytes.
void bare_loop(const Traffic& traffic, Buffers& buffers);

}  // namespace casync::bench
