#pragma once

#include <cstddef>
#include <list>
#include <vector>

#include "executor/operation.hpp"

namespace casync {

/// Operations in the place of a program that has joined: zeros go in, and the result goes nowhere. The join itself ends
/// after the last of them has: the program may submit the same names then. Used by the holder of the progress role
/// alone.
class StandIns {
 public:
  /// A new one, with memory of its own.
  Operation& add(const Definition& definition);
  /// `operation`, one of these, has ended.
  void ended(Operation& operation);
  /// The join that these are for has ended on all ranks.
  void joined(Operation& join) { join_ = &join; }
  /// The join that may be told to the program; null: none, or not yet.
  Operation* take_join();

 private:
  struct StandIn {
    Operation operation;
    std::vector<std::byte> memory;
  };

  std::list<StandIn> running_;
  std::list<StandIn> interrupted_;  ///< the network may still touch their memory
  Operation* join_ = nullptr;
};

}  // namespace casync
