// Two levels: the ranks of one host first, uncompressed over shared memory; then the hosts, compressed over the network
// (paper: section 5.1, local aggregation). Partition p is led on each host by one of its ranks, a different one for
// neighbouring partitions, so no core and no network queue does the work of all; one host's leader owns p.
//
//   step 1  each rank sends its raw contribution to its host's leader of p (on credit)
//   step 2  the leaders go the way of a flat route among themselves. What a leader contributes is the sum over its
//           host, added in rank order, and what a codec keeps of it is the leader's
//   step 3  a leader passes the result on to its ranks: what all leaders decoded, or the decoded result itself
//
// A plan may name the flat route: two_level(ring). Otherwise it is a parameter server, whose owner adds host by host:
// hops 4; bytes per direction between hosts 2(H-1)/H of the encoded gradient per host when K is a multiple of H times
// L. `gather` codecs go directly: hops 3; bytes H-1 times the encoded gradient. So ranks of a host add nothing to what
// goes between hosts. Hosts may have unequal numbers of ranks. With `none` the sums are the raw elements.
#include <algorithm>
#include <array>

#include "casync/error.hpp"
#include "routes/flat.hpp"
#include "routes/hosts.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kGather = 0;
constexpr std::uint32_t kScatter = 1;

class TwoLevel final : public Route {
 public:
  TwoLevel() = default;
  explicit TwoLevel(const FlatRoute& between)
      : name_(detail::concat("two_level(", between.name(), ")")), between_(&between) {}

  std::string_view name() const override { return name_; }
  std::vector<Phase> phases() const override {
    std::vector<Phase> phases{{Scope::intra, Routine::reduce_scatter}};
    if (between_ == nullptr) {
      phases.push_back({Scope::inter, Routine::allreduce});
    } else {
      for (const Routine routine : between_->routines()) phases.push_back({Scope::inter, routine});
    }
    phases.push_back({Scope::intra, Routine::allgather});
    return phases;
  }
  std::optional<std::string> why_unsupported(const RouteRequest& request) const override {
    const auto between = between_ == nullptr ? std::nullopt : between_->why_unsupported(request);
    return between ? between : why_not_in_parts(request);
  }
  bool merges_at_once() const override { return false; }

  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override {
    return owners_by_turns(ranks_by_host(host_of));
  }

  void build(WorkflowBuilder& builder) const override {
    const Hosts hosts = ranks_by_host(builder.request().host_of);
    const auto count = static_cast<std::uint32_t>(hosts.size());
    builder.set_contributions(count);
    for (const std::uint32_t p : builder.sent()) {
      const std::uint32_t position = builder.position(p);
      build_partition(builder, hosts, p, position % count, position / count);
    }
  }

 private:
  /// The way of the leaders. One alone has no ring to go round.
  const FlatRoute& between(const CodecInfo& codec, std::size_t hosts) const {
    if (between_ != nullptr && hosts > 1) return *between_;
    return gathers(codec) ? direct_route() : parameter_server_route();
  }

  /// Ranks of a host take turns at leading it, a turn for each round of owners.
  void build_partition(WorkflowBuilder& builder, const Hosts& hosts, std::uint32_t p, std::uint32_t owner,
                       std::uint32_t turn) const {
    const Rank self = builder.request().member;
    const CodecInfo& codec = builder.request().codec->info();
    const auto leader_of = [&](const std::vector<Rank>& ranks) { return ranks[turn % ranks.size()]; };
    const auto& mates =
        *std::ranges::find_if(hosts, [&](const auto& ranks) { return std::ranges::count(ranks, self); });
    const auto scatter = [&](std::size_t round) {
      return tag_of(builder, p, kScatter, static_cast<std::uint32_t>(round));
    };
    if (self != leader_of(mates)) {
      builder.send(p, leader_of(mates), tag_of(builder, p, kGather, 0), WorkflowBuilder::input(), true);
      const bool encoded = between(codec, hosts.size()).ends_encoded(codec);
      std::vector<Buffer> results;
      for (std::size_t round = 0; round < (encoded ? codec.rounds.size() : 1); ++round) {
        results.push_back(encoded ? builder.payload_slot(p, static_cast<int>(round)) : WorkflowBuilder::output());
        builder.recv(p, leader_of(mates), scatter(round), results.back());
      }
      if (encoded) deliver(builder, p, results);
      return;
    }
    std::vector<Buffer> contributions;
    for (const Rank mate : mates) {
      contributions.push_back(mate == self ? WorkflowBuilder::input() : builder.raw_slot(p));
      if (mate != self) builder.recv(p, mate, tag_of(builder, p, kGather, 0), contributions.back(), true);
    }
    std::vector<PartitionBuilder::Member> leaders;
    for (const auto& ranks : hosts) leaders.push_back({leader_of(ranks), ranks.size() > 1});
    PartitionBuilder partition(builder, p, std::move(leaders), owner, std::move(contributions));
    const std::vector<Buffer> results = between(codec, hosts.size()).build_partition(partition);
    for (const Rank mate : mates) {
      for (std::size_t round = 0; mate != self && round < results.size(); ++round)
        builder.send(p, mate, scatter(round), results[round]);
    }
  }

  std::string name_ = "two_level";
  const FlatRoute* between_ = nullptr;  // null: by the codec
};

}  // namespace

const Route& two_level_route() {
  static const TwoLevel route;
  return route;
}

std::span<const Route* const> two_level_routes() {
  static const TwoLevel direct(direct_route()), ps(parameter_server_route()), ring(ring_route());
  static const std::array<const Route*, 3> routes{&direct, &ps, &ring};
  return routes;
}

}  // namespace casync
