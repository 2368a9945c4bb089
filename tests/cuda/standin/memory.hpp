#pragma once

#include <cstddef>
#include <cstdint>

/// The memory of the stand-in's devices: addresses that the host can never use, and their bytes elsewhere.
///
/// An access of the host faults, on every thread, and the process ends with what was accessed. Freed memory is filled
/// with 0xFF, which is NaN in every float, and kept aside for a while, so that who still reads it sees it. What lies
/// behind the addresses is a file in memory, of which another process may open a part.
namespace standin::memory {

/// 0: there is no room.
std::uint64_t allocate(std::size_t bytes, int device);
/// False: nothing was allocated there.
bool free(std::uint64_t address);
/// Whether it is an address of a device, allocated or not.
bool is_device(std::uint64_t address);
/// Whether so many bytes are part of one allocation that was not freed.
bool holds(std::uint64_t address, std::size_t bytes);
/// The bytes of `address`, for the host.
std::byte* bytes_of(std::uint64_t address);
std::int64_t distance();
/// An allocation of some process.
struct Shared {
  int owner = 0;  ///< the process
  int file = 0;   ///< its descriptor there
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
};
/// The allocation at `address`; no bytes: there is none.
Shared share(std::uint64_t address);
/// Where it is here. 0: its process is no more.
std::uint64_t open(const Shared& what);
std::size_t in_use();

}  // namespace standin::memory
