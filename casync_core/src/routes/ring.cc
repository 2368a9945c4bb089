// Ring (paper: figure 1b). Partition p starts at the successor of its owner and travels the ring twice.
//
//   reduce phase     N-1 hops: a member adds its own contribution to what its predecessor sent and passes the sum on;
//                    the last hop ends at the owner, which takes the mean
//   broadcast phase  N-1 hops: the result is passed on unchanged, and every member decodes the same bytes
//
// Order of addition: owner+1, owner+2, ..., owner, so it depends on the partition (PS adds in member order instead).
// hops 2(N-1); bytes per direction 2(N-1)/N of the encoded gradient when K is a multiple of N; messages of a member
// 2K(N-1)/N. With a codec the sum is encoded again at every hop: exact for none, one rounding per hop for 16-bit
// floats, lossy at every hop for `reencode` codecs, which therefore take a ring only on request. A member encodes each
// partition once, so one residual suffices.
//
// `gather` codecs select again at every hop, so that payloads stay as short as one (paper: section 5.3). What a hop
// does not send on stays with the member, which sends it in a later step. The mean is taken when all have decoded.
//
// A codec of several rounds whose payloads add up goes in parts: each round every member encodes, and the payload is
// cut into N parts, each of which travels the ring twice as a partition does. hops 2(N-1) a round; bytes per direction
// 2(N-1)/N of the payloads.
#include "routes/flat.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kReduce = 0;
constexpr std::uint32_t kBroadcast = 1;

class Ring final : public FlatRoute {
 public:
  std::string_view name() const override { return "ring"; }
  std::vector<Routine> routines() const override { return {Routine::reduce_scatter, Routine::allgather}; }
  std::optional<std::string> obstacle(const Cargo& cargo) const override { return obstacle_to_merging_apart(cargo); }
  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override { return everybody(host_of); }
  bool merges_at_once() const override { return false; }
  bool ends_encoded(const CodecInfo& codec) const override { return !codec.identity; }

  std::vector<Buffer> lay(Group& group) const override {
    if (group.merges_payloads()) return in_rounds(group);
    const std::uint32_t n = group.size();
    const std::uint32_t next = (group.self() + 1) % n;
    const std::uint32_t before = (group.self() + n - 1) % n;
    const std::uint32_t hop = (group.self() + n - group.owner() - 1) % n;  // 0 at the starter, n-1 at the owner
    const bool ends = hop == n - 1;
    Buffer carried = hop == 0 ? group.contribution() : add(group, before, hop);
    if (!ends) {
      group.send(next, kReduce, carried, true);
      carried = group.identity() ? WorkflowBuilder::output() : group.payload_slot();
      group.recv(before, kBroadcast, carried, false);
    }
    if (!ends || group.gathers()) group.deliver({carried});
    if (next != group.owner()) group.send(next, kBroadcast, carried, false);
    return {carried};
  }

 private:
  static std::vector<Buffer> in_rounds(Group& group) {
    std::vector<Buffer> results;
    for (std::uint32_t round = 0; round < group.rounds(); ++round) {
      const Buffer mine = group.contribution(round, round > 0 ? results.back() : Buffer{});
      results.push_back(group.payload_slot(round));
      for (std::uint32_t part = 0; part < group.size(); ++part) lay_part(group, round, part, mine, results.back());
    }
    group.deliver(results);
    return results;
  }

  /// Part `part` of a round's payloads, which ends at the member of that number, added up into `result`.
  static void lay_part(Group& group, std::uint32_t round, std::uint32_t part, Buffer mine, Buffer result) {
    const std::uint32_t n = group.size();
    const std::int64_t floats = group.floats_of(mine);
    const Range range{floats * part / n, floats * (part + 1) / n};
    if (range.size() == 0) return;
    const std::uint32_t next = (group.self() + 1) % n;
    const std::uint32_t before = (group.self() + n - 1) % n;
    const std::uint32_t hop = (group.self() + n - part - 1) % n;  // 0 at the starter, n-1 where it ends
    const bool ends = hop == n - 1;
    const auto number = static_cast<std::uint8_t>(round);
    const std::uint32_t message = round * n + part;
    std::vector<Buffer> sources;
    if (hop > 0) {
      sources.push_back(group.part_slot(round, range));
      group.recv(before, kReduce, sources.back(), true, message, hop > 1 || group.sums(before));
    }
    sources.push_back(mine);
    Buffer carried = group.part_slot(round, range);
    group.compute(Primitive::merge, sources, {.round = number, .final = ends, .write_to = carried, .floats = range});
    if (!ends) {
      group.send(next, kReduce, carried, true, message);
      carried = group.part_slot(round, range);
      group.recv(before, kBroadcast, carried, false, message);
    }
    if (next != part) group.send(next, kBroadcast, carried, false, message);
    group.compute(Primitive::merge, {carried}, {.round = number, .write_to = result, .floats = range});
  }

  /// Adds this member's contribution to the sum that comes; returns where the new sum is.
  static Buffer add(Group& group, std::uint32_t before, std::uint32_t hop) {
    ComputeOptions options{.role = Role::owner, .feedback = true};
    options.final = options.deliver = hop == group.size() - 1 && !group.gathers();
    if (group.identity() || options.deliver) options.write_to = WorkflowBuilder::output();
    if (!group.identity()) options.encode_to = group.payload_slot();
    std::vector<Buffer> contributions{group.payload_slot()};
    group.recv(before, kReduce, contributions.front(), true, 0, hop > 1 || group.sums(before));
    contributions.insert(contributions.end(), group.own().begin(), group.own().end());
    group.compute(Primitive::merge, contributions, options);
    return group.identity() ? options.write_to : options.encode_to;
  }
};

}  // namespace

const FlatRoute& ring_route() {
  static const Ring route;
  return route;
}

}  // namespace casync
