#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "coordinator/link_policy.hpp"

namespace casync {

inline constexpr std::array<std::string_view, 2> kPolicyName{"local", "global"};

/// The policy of that name, with its default options. Throws InvalidArgument that lists both.
std::unique_ptr<LinkPolicy> make_policy(const std::string& name, Rank member, Rank members);

}  // namespace casync
