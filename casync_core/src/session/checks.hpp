#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/operation.hpp"

/// What can be refused without asking the other ranks, besides what the planner refuses: by InvalidArgument.
namespace casync {

void check_signature(const std::string& name, const Signature& signature, Rank size);
void check_splits(const Definition& definition, const std::vector<std::int64_t>& splits, Rank size);

}  // namespace casync
