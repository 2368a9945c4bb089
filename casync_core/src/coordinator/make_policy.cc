#include "coordinator/make_policy.hpp"

#include "casync/error.hpp"
#include "coordinator/global_policy.hpp"
#include "coordinator/local_policy.hpp"

namespace casync {

std::unique_ptr<LinkPolicy> make_policy(const CoordinatorOptions& options, Rank member, Rank members) {
  if (options.policy == kPolicyName[0]) return std::make_unique<LocalPolicy>(member, members, LocalPolicy::Options{});
  if (options.policy == kPolicyName[1]) return std::make_unique<GlobalPolicy>(member, members, options);
  throw InvalidArgument(detail::concat("coordinator \"", options.policy, "\" is not known; there are \"",
                                       kPolicyName[0], "\" and \"", kPolicyName[1], "\""));
}

}  // namespace casync
