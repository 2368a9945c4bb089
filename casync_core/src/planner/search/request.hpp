#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "casync/codec.hpp"
#include "casync/planner.hpp"

namespace casync {

/// What a user asked for, taken apart and checked.
struct Asked {
  bool always = false;                               ///< "always(...)": whatever the gradient's size
  bool automatic = false;                            ///< "auto" or "auto(...)"
  std::vector<std::shared_ptr<const Codec>> codecs;  ///< the one named; or the candidates, `none` first
  std::optional<std::string> topology;               ///< the one named, by the signature or else by the options
};

/// What stands in "always(onebit)"; nothing if the text is not an always.
std::optional<std::string_view> parse_always(std::string_view text);

/// Specs in "auto(onebit, terngrad(bits=4))"; nothing if the text is not an auto. Bare "auto" gives an empty list.
std::optional<std::vector<std::string>> parse_auto(std::string_view text);

/// The codecs that `request` leaves a choice among, or the one it names: canonical specs, in the order of
/// Asked::codecs.
std::vector<std::string> candidates(const PlanRequest& request);

/// Throws InvalidArgument as plan_gradient says, except for topologies that cannot carry a codec.
Asked parse_request(const PlanRequest& request);

/// Throws InvalidArgument if the route that is named so cannot carry `codec` for this request.
void check_route(const PlanRequest& request, std::string_view topology, const Codec& codec);

}  // namespace casync
