#pragma once

#include <cstdint>
#include <span>

#include "casync/planner.hpp"

namespace casync {

/// Where the partitions of one gradient should start to be dealt, and what the members own afterwards.
struct Balance {
  std::uint32_t first_owner = 0;
  OwnerLoad load;
};

/// Deals `partitions` of `partition_bytes` each to consecutive owners of the turn (Route::owners), from the start that
/// leaves the most loaded of those owners with least; among equals, the start whose owners have least in all, then the
/// lowest. Where nobody owns anything the load stays as it was.
Balance deal(std::span<const Rank> owners, std::uint32_t members, std::uint32_t partitions, double partition_bytes,
             const OwnerLoad& load);

}  // namespace casync
