#pragma once

#include "codec/cuda/kernels/copy_arguments.hpp"
#include "codec/cuda/kernels/lanes.hpp"
#include "codec/cuda/kernels/team.hpp"

/// Payloads on their way over the bus, where an asynchronous copy is too slow to begin or its length is not known to
/// the host.
namespace casync::codec::cuda {

/// What a thread moves at a time: the bus is slow for single bytes.
struct alignas(16) Sixteen {
  std::uint64_t low, high;
};

template <typename Team>
CASYNC_DEVICE void copy_piece(const Team& team, const CopyBatch& copy, std::int64_t piece) {
  const std::int64_t bytes = copy.length == nullptr ? copy.bytes : *copy.length;
  const std::int64_t begin = piece * CopyBatch::kPiece;
  const std::int64_t end = smaller(begin + CopyBatch::kPiece, bytes);
  std::int64_t single = begin;  // the first byte that is moved alone
  if ((reinterpret_cast<std::uint64_t>(copy.from) | reinterpret_cast<std::uint64_t>(copy.to)) % 16 == 0) {
    const auto* const from = reinterpret_cast<const Sixteen*>(copy.from);
    auto* const to = reinterpret_cast<Sixteen*>(copy.to);
    single = larger(begin, end / 16 * 16);
    for (std::int64_t i = begin / 16 + team.rank(); i < single / 16; i += team.size()) to[i] = from[i];
  }
  for (std::int64_t i = single + team.rank(); i < end; i += team.size()) copy.to[i] = copy.from[i];
}

CASYNC_KERNEL(casync_copy, BlockTeam<256>, CopyBatch, copy_piece)

}  // namespace casync::codec::cuda
