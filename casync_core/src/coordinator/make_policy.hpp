#pragma once

#include <memory>

#include "casync/coordinator.hpp"
#include "coordinator/link_policy.hpp"

namespace casync {

/// The policy that `options` name. Throws InvalidArgument that lists all.
std::unique_ptr<LinkPolicy> make_policy(const CoordinatorOptions& options, Rank member, Rank members);

}  // namespace casync
