#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "casync/staggered.hpp"
#include "casync/types.hpp"

/// Memory that may be a device's. Code that does not know of devices uses it by these interfaces.
namespace casync {

/// Bytes, and whose they are: the host reads and writes none of a device's.
struct MemoryRef {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::host;

  bool on_device() const { return kind == MemoryKind::device; }
  /// Of the host's memory.
  std::span<std::byte> span() const { return {data, bytes}; }
};

/// Where memory for slots comes from. One thread at a time.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// The memory is not initialised. Throws if there is not enough.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
};

/// Memory of the host.
Allocator& host_memory();

/// Floats where a stream of a device reaches them, and the host does not.
class FarFloats {
 public:
  virtual ~FarFloats() = default;
  virtual float* data() = 0;
  virtual std::size_t size() const = 0;
  /// As they are when all that was launched before is over, for which it waits.
  virtual FloatArray copy() const = 0;
};

}  // namespace casync
