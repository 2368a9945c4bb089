#pragma once

#include <memory>
#include <string>

#include "coordinator/link_policy.hpp"

namespace casync {

/// The policy of that name, "local" or "global", with its default options. Throws InvalidArgument that lists both.
std::unique_ptr<LinkPolicy> make_policy(const std::string& name, std::uint16_t member, std::uint16_t members);

}  // namespace casync
