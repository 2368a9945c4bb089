#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "casync/codec.hpp"
#include "casync/types.hpp"

/// The route contract: what the author of a way to synchronise implements, and all that the runtime knows of one. A
/// route is the synchronisation strategy of the paper (section 3.1): it says for a gradient which rank encodes, sends,
/// merges and decodes what. It is one file: a subclass, and an object of it that is made known by `add_route`. A route
/// does not state what it costs: the planner counts that in the workflows that the route builds
/// (planner/cost/route_costs.hpp).
///
/// Guarantees a route gives, which `tests/cpp/routes` holds every one to: each rank's contribution reaches the result
/// exactly once, every rank gets the same bits, contributions are added in an order that follows from the request
/// alone, and every send has its receive. So with gradients in every step replicas are equal after every step. Local
/// SGD and DiLoCo (casync/relaxed) send what parameters have changed by over the same routes: there the global
/// parameters are equal after every round.
namespace casync {

class WorkflowBuilder;

/// What a route is asked to carry.
struct RouteRequest {
  const CodecInfo& codec;
  ReduceOp op = ReduceOp::sum;
  std::span<const std::uint32_t> host_of;  ///< per member: host index
};

/// Between whom a phase of a route goes on.
enum class Scope : std::uint8_t {
  flat,   ///< all ranks
  intra,  ///< the ranks of each host: raw elements, through memory
  inter,  ///< one rank of each host
};
inline constexpr std::array<std::string_view, 3> kScopeName{"flat", "intra", "inter"};
constexpr std::string_view name_of(Scope scope) { return kScopeName[static_cast<std::size_t>(scope)]; }

/// What a phase does with the partitions of a gradient.
enum class Routine : std::uint8_t {
  allreduce,       ///< what fits the codec: alltoall and allgather, or only allgather where it gathers payloads
  alltoall,        ///< each contribution goes to the partition's owner, which adds them up
  gather,          ///< the same, with one owner of all partitions
  reduce_scatter,  ///< sums go from rank to rank, and end at the partition's owner
  reduce,          ///< sums go up a tree
  allgather,       ///< what each has of a partition goes to all others
  broadcast,       ///< results go down a tree
};
inline constexpr std::array<std::string_view, 7> kRoutineName{"allreduce", "alltoall",  "gather",   "reduce_scatter",
                                                              "reduce",    "allgather", "broadcast"};
constexpr std::string_view name_of(Routine routine) { return kRoutineName[static_cast<std::size_t>(routine)]; }

/// One phase of a route. Partitions go through all of them, each at its own pace.
struct Phase {
  Scope scope = Scope::flat;
  Routine routine = Routine::allreduce;
  friend bool operator==(const Phase&, const Phase&) = default;
};

class Route {
 public:
  Route() = default;
  virtual ~Route() = default;
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  /// What a plan calls it, for example "ring".
  virtual std::string_view name() const = 0;

  /// What it does, one after the other: how a plan file says it.
  virtual std::vector<Phase> phases() const = 0;

  /// Why it does not support `request`, as a clause: "codec dgc gathers payloads". Nothing if it does.
  virtual std::optional<std::string> why_unsupported(const RouteRequest& request) const = 0;

  /// Who owns the partitions, in turn: partition p of a plan belongs to owners[(first_owner + p) % owners.size()].
  /// Empty where nobody does more for a partition than others.
  virtual std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const = 0;

  /// Whether the owner of the first partition owns all of a gradient.
  virtual bool has_one_owner() const { return false; }

  /// Whether every rank's contribution goes straight to where all of them are merged. Then a rank may send its own
  /// before others have theirs, and a codec that needs all contributions at one place can go this way.
  virtual bool merges_at_once() const = 0;

  /// Lays out the part of one member. May be called by several threads at a time.
  virtual void build(WorkflowBuilder& builder) const = 0;
};

/// The route that a plan or a user names so. Throws InvalidArgument that lists what is known.
std::shared_ptr<const Route> make_route(std::string_view name);

/// Names that make_route knows, CaSync's own first. Of the routes in two levels only "two_level" is among them. In
/// that one the codec decides how it goes on between hosts.
std::vector<std::string_view> route_names();

/// The names of the routes in two levels that say how it goes on between hosts, for example "two_level(ring)".
std::vector<std::string_view> two_level_names();

/// Makes a route known, which lives as long as the program. Called before the program has a second thread, as by the
/// initialiser of a global in the route's file. Returns true.
bool add_route(const Route& route);

/// Throws InvalidArgument, naming the routes that support `request`, if `route` does not.
void check_supports(const Route& route, const RouteRequest& request);

}  // namespace casync
