#include "planner/search/assign_offsets.hpp"

#include <algorithm>

#include "casync/route.hpp"
#include "common/hash.hpp"
#include "planner/search/assign_owners.hpp"

namespace casync {
namespace {

/// Returns the bytes of one partition, as a whole number: a load from which it is taken again is then as before.
double partition_bytes(const GradientPlan& plan) { return static_cast<double>(plan.payload_bytes / plan.partitions); }

}  // namespace

void OffsetDealer::deal(const std::string& name, GradientPlan& plan) {
  const auto known = dealt_.find(name);
  const bool stays = known != dealt_.end() && known->second.period == plan.period;
  if (stays) plan.offset = known->second.offset;
  forget(name);
  std::vector<double>& bytes = bytes_[plan.period];
  bytes.resize(plan.period, 0.0);
  if (!stays) plan.offset = static_cast<std::uint32_t>(std::ranges::min_element(bytes) - bytes.begin());
  const std::vector<Rank> owners = make_route(plan.topology)->owners(host_of_);
  const OwnerLoad& load = loads_[{plan.period, plan.offset}];
  plan.first_owner =
      casync::deal(owners, static_cast<std::uint32_t>(host_of_.size()), plan.partitions, partition_bytes(plan), load)
          .first_owner;
  count(plan, Change::add);
  dealt_.emplace(name, plan);
}

void OffsetDealer::forget(const std::string& name) {
  const auto known = dealt_.find(name);
  if (known == dealt_.end()) return;
  count(known->second, Change::remove);
  dealt_.erase(known);
}

void OffsetDealer::count(const GradientPlan& plan, Change change) {
  const double sign = change == Change::add ? 1 : -1;
  bytes_[plan.period][plan.offset] += sign * static_cast<double>(plan.payload_bytes);
  const std::vector<Rank> owners = make_route(plan.topology)->owners(host_of_);
  if (owners.empty()) return;
  std::vector<double>& load = loads_[{plan.period, plan.offset}].bytes;
  load.resize(host_of_.size(), 0.0);
  for (std::uint32_t p = 0; p < plan.partitions; ++p) {
    load[owners[(plan.first_owner + p) % owners.size()]] += sign * partition_bytes(plan);
  }
}

/// The low bits of hash_text are those that owners are dealt by, and the parity of a text has a hand in all of them: so
/// its bits are mixed first, as MurmurHash3 ends.
std::uint32_t offset_by_name(std::string_view name, std::uint32_t period) {
  std::uint64_t hash = hash_text(name);
  hash = (hash ^ hash >> 33U) * 0xff51afd7ed558ccdULL;
  hash = (hash ^ hash >> 33U) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<std::uint32_t>((hash ^ hash >> 33U) % period);
}

}  // namespace casync
