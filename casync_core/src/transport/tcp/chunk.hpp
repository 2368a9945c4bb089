#pragma once

#include <cstdint>

namespace casync::transport::tcp {

/// It stands before a part of a body on a stream. Bodies of a peer are numbered as they were sent, from 0.
struct Chunk {
  std::uint64_t body;
  std::uint64_t whole;   ///< bytes of the body
  std::uint64_t offset;  ///< of this part in it
  std::uint64_t bytes;   ///< of this part, which follows
};

}  // namespace casync::transport::tcp
