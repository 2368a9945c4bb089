#pragma once

#include <cstddef>
#include <cstdint>

/// The memory of the stand-in's devices: addresses that the host can never use, and their bytes elsewhere.
///
/// An access of the host faults, on every thread, and the process ends with what was accessed. Freed memory is filled
/// with 0xFF, which is NaN in every float, and kept aside for a while, so that who still reads it sees it.
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
std::size_t in_use();

}  // namespace standin::memory
