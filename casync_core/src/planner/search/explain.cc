#include "casync/error.hpp"
#include "casync/planner.hpp"
#include "casync/route.hpp"
#include "planner/text.hpp"

namespace casync {

std::string explain(std::string_view name, const Signature& signature, const Decision& decision) {
  const GradientPlan& plan = decision.plan;
  const bool compressed = plan.codec != "none";
  std::string line =
      detail::concat(name, " ", signature.dims.empty() ? "()" : signature.dims, " ", name_of(signature.dtype), ": ",
                     plan.codec, ", K=", plan.partitions, ", ", make_route(plan.topology)->name(), ", ");
  if (compressed) line += detail::concat(in_ms(decision.seconds), " compressed, ");
  line += detail::concat(in_ms(decision.original_s), " not");
  return detail::concat(line, "; first owner ", plan.first_owner, "; ", plan.reason);
}

}  // namespace casync
