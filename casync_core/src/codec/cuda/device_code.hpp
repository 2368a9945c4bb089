#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "casync/codec.hpp"
#include "codec/cpu/generated_codec.hpp"
#include "codec/cuda/device_kernels.hpp"

namespace casync::codec::cuda {

/// What a codec says of its device code: which kernels it has, and how a segment is divided into their units. The same
/// units as on the CPU, so the bytes are the same.
class DeviceCode {
 public:
  virtual ~DeviceCode() = default;

  virtual const DeviceKernels& table() const = 0;
  /// Facts and parameters of the segment's gradient. No pointer is set.
  virtual Units units(const Segment& segment) const = 0;
  /// The first element of each unit of `range`, which lies on boundaries, and the end of the last one.
  virtual std::vector<std::int64_t> begins(const Shape& shape, const Range& range) const = 0;
  /// Room for the payload of a unit of `elements`, in bytes.
  virtual std::int64_t slot_bytes(const Shape& shape, std::int64_t elements, int round) const = 0;
  virtual Round round(int number) const = 0;
};

}  // namespace casync::codec::cuda
