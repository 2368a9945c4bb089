#include "planner/search/assign_offsets.hpp"

#include <algorithm>
#include <limits>

#include "casync/route.hpp"
#include "common/hash.hpp"

namespace casync {
namespace {

/// Returns the bytes of one partition, as a whole number: a load from which it is taken again is then as before.
double partition_bytes(const GradientPlan& plan) { return static_cast<double>(plan.payload_bytes / plan.partitions); }

/// What goes of a gradient in one of its turns.
struct Turn {
  std::uint32_t step = 0;  ///< of the period
  Range partitions;
};

std::vector<Turn> turns_of(const GradientPlan& plan, std::uint32_t offset) {
  std::vector<Turn> turns;
  for (std::uint32_t turn = 0; turn < plan.period; ++turn)
    turns.push_back({(offset + turn) % plan.period, partitions_of(turn, plan.period, plan.partitions)});
  return turns;
}

}  // namespace

void OffsetDealer::deal(const std::string& name, GradientPlan& plan) {
  const auto known = dealt_.find(name);
  const bool stays = known != dealt_.end() && known->second.period == plan.period;
  if (stays) plan.offset = known->second.offset;
  forget(name);
  if (!stays) plan.offset = least_filled(plan);
  plan.first_owner = least_loaded(plan);
  count(plan, Change::add);
  dealt_.emplace(name, plan);
}

std::uint32_t OffsetDealer::least_filled(const GradientPlan& plan) {
  std::vector<double>& bytes = bytes_[plan.period];
  bytes.resize(plan.period, 0.0);
  std::uint32_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t offset = 0; offset < plan.period; ++offset) {
    double beside = 0;  // what is sent already, beside each of its partitions
    for (const Turn& turn : turns_of(plan, offset))
      beside += static_cast<double>(turn.partitions.size()) * bytes[turn.step];
    if (beside < least) {
      least = beside;
      best = offset;
    }
  }
  return best;
}

std::uint32_t OffsetDealer::least_loaded(const GradientPlan& plan) {
  const std::vector<Rank> owners = make_route(plan.topology)->owners(host_of_);
  const auto positions = static_cast<std::int64_t>(owners.size());
  const std::vector<Turn> turns = turns_of(plan, plan.offset);
  std::uint32_t best = 0;
  std::pair<double, double> least{std::numeric_limits<double>::infinity(), 0};
  for (std::int64_t start = 0; start < positions; ++start) {
    std::pair<double, double> cost{0, 0};  // the most that an owner has already, and what all of them have
    for (const Turn& turn : turns) {
      std::vector<double>& load = loads_[{plan.period, turn.step}];
      load.resize(host_of_.size(), 0.0);
      // Whole rounds of the owners give each as much, wherever they start.
      for (std::int64_t p = 0; p < turn.partitions.size() % positions; ++p) {
        const double owned = load[owners[static_cast<std::size_t>((start + turn.partitions.begin + p) % positions)]];
        cost = {std::max(cost.first, owned), cost.second + owned};
      }
    }
    if (cost < least) {
      least = cost;
      best = static_cast<std::uint32_t>(start);
    }
  }
  return best;
}

void OffsetDealer::forget(const std::string& name) {
  const auto known = dealt_.find(name);
  if (known == dealt_.end()) return;
  count(known->second, Change::remove);
  dealt_.erase(known);
}

void OffsetDealer::count(const GradientPlan& plan, Change change) {
  const double bytes = (change == Change::add ? 1 : -1) * partition_bytes(plan);
  const std::vector<Rank> owners = make_route(plan.topology)->owners(host_of_);
  for (const Turn& turn : turns_of(plan, plan.offset)) {
    bytes_[plan.period][turn.step] += static_cast<double>(turn.partitions.size()) * bytes;
    if (owners.empty()) continue;
    std::vector<double>& load = loads_[{plan.period, turn.step}];
    load.resize(host_of_.size(), 0.0);
    for (std::int64_t p = turn.partitions.begin; p < turn.partitions.end; ++p)
      load[owners[static_cast<std::size_t>(plan.first_owner + p) % owners.size()]] += bytes;
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
