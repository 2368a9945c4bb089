#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace casync {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`, after others whose sum is `before`; uses the processor's
/// instruction where there is one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace casync
