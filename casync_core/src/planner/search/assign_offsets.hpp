#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casync/planner.hpp"

namespace casync {

/// Deals the gradients that go in turns to the steps of their period, so that each step sends about as many bytes, and
/// what goes in one step to owners, so that no owner has more than its part of that step. Owners that were dealt for
/// all steps together would not do: with four ranks and four steps every gradient of a step might have the same one.
/// Each period is dealt for itself. Pure.
class OffsetDealer {
 public:
  explicit OffsetDealer(std::vector<std::uint32_t> host_of) : host_of_(std::move(host_of)) {}

  /// Sets offset and first owner of a plan of several steps. The offset is the one by which its partitions join the
  /// fewest bytes so far, or the lowest of those; a gradient that was dealt before keeps it, so that a new plan makes
  /// nothing wait longer. The first owner is the one that leaves the most loaded owner with least; among equals the one
  /// whose owners have least in all, then the lowest.
  void deal(const std::string& name, GradientPlan& plan);
  void forget(const std::string& name);

 private:
  enum class Change : std::int8_t { add = 1, remove = -1 };
  std::uint32_t least_filled(const GradientPlan& plan);
  std::uint32_t least_loaded(const GradientPlan& plan);
  void count(const GradientPlan& plan, Change change);

  std::vector<std::uint32_t> host_of_;
  std::map<std::string, GradientPlan, std::less<>> dealt_;
  std::map<std::uint32_t, std::vector<double>> bytes_;                            // by period: of each step
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<double>> loads_;  // by period and step: of each member
};

/// An offset that depends on the name alone, and not on which owner the name is dealt to.
std::uint32_t offset_by_name(std::string_view name, std::uint32_t period);

}  // namespace casync
