#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "casync/codec.hpp"
#include "casync/planner.hpp"

namespace casync {

/// The longest interval of covap(...): what waits is applied at once, as if the learning rate were so many times
/// larger.
inline constexpr std::uint32_t kMostInterval = 8;

/// The text of a compression, without what stands around its choice of codecs.
struct Compression {
  bool always = false;         ///< "always(...)": whatever the gradient's size
  std::uint32_t interval = 1;  ///< "covap(fp16, interval=4)": a gradient goes in one step of so many; 0: left open
  Coefficient coefficient{};   ///< "covap(fp16, interval=4, init=0.5)": of what waits
  std::string choice;          ///< a codec's spec, "auto" or "auto(...)"; not checked yet where interval is 1
};

/// What a user asked for, taken apart and checked.
struct Asked {
  bool always = false;                               ///< as in Compression
  std::uint32_t interval = 1;                        ///< likewise
  Coefficient coefficient{};                         ///< likewise
  bool automatic = false;                            ///< "auto" or "auto(...)"
  std::vector<std::shared_ptr<const Codec>> codecs;  ///< the one named; or the candidates, `none` first
  std::optional<std::string> topology;               ///< the one named, by the signature or else by the options
};

/// The only reader of "always(...)" and "covap(...)"; always(...) stands outside. "covap" is covap(none). Throws
/// InvalidArgument for what cannot be read, for an interval that is not from 1 to kMostInterval, and for a covap of
/// what cannot wait for several steps.
Compression parse_compression(std::string_view text);

/// Why what a step leaves of such a tensor cannot wait for a later one, as a clause; nothing if it can.
std::optional<std::string> why_not_held(const Signature& signature);

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
