#pragma once

#include <cstddef>
#include <cstdint>

/// What a head is, however it travels.
namespace casync::transport::host {

/// It follows a head on the wire, or stands before it in a mailbox.
enum class HeadKind : std::uint64_t {
  user = 0,
  announcement = 1,  ///< a large body has been sent
  goodbye = 2,       ///< the sender closes; nothing follows
};

inline constexpr std::size_t kWireHeadBytes = 32 * 1024;
inline constexpr std::size_t kHeadBytes = kWireHeadBytes - sizeof(HeadKind);

}  // namespace casync::transport::host
