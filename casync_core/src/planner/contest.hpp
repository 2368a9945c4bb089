#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "casync/planner.hpp"
#include "planner/referee.hpp"
#include "planner/world.hpp"

namespace casync {

/// A gradient whose codec the planner chooses.
struct OpenGradient {
  std::string name;
  Signature signature;
  std::uint32_t step = 0;  ///< the next one
};

/// The ways to synchronise a model that are compared, and the plans of each: what the cost model says ("plan"), and all
/// gradients by one codec, for each codec that is a candidate. A gradient of which that codec is no candidate keeps
/// what the cost model says. Ways that mean the same are one.
class Contest {
 public:
  /// `lasting` is what the members own of gradients that are not open. `world` and `costs` outlive it.
  Contest(const World& world, const CostTable& costs, PlannerOptions options, OwnerLoad lasting,
          const std::vector<OpenGradient>& gradients);

  /// The plan of an open gradient by the way that is current, also of one that was not there at first.
  Decision plan(const std::string& name, const Signature& signature, std::uint32_t step);
  /// A step ended that took `seconds`; nothing: it does not count. Returns whether plans have changed.
  bool ended(std::optional<double> seconds) { return referee_->ended(seconds); }
  bool over() const { return referee_->over(); }
  /// Whether there was more than one way.
  bool compares() const { return ways_.size() > 1; }
  std::string verdict() const { return referee_->verdict(); }

 private:
  struct Way {
    std::string codec;  ///< empty: what the cost model says
    OwnerLoad load;
    std::map<std::string, Decision, std::less<>> decisions{};
  };
  const Decision& decide(Way& way, const std::string& name, const Signature& signature, std::uint32_t step);

  const World& world_;
  const CostTable& costs_;
  PlannerOptions options_;
  std::vector<Way> ways_;  // in the order of preference
  std::optional<Referee> referee_;
};

}  // namespace casync
