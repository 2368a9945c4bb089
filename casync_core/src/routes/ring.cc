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
  std::optional<std::string> why_unsupported(const RouteRequest& request) const override {
    return why_not_merged_apart(request);
  }
  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override { return everybody(host_of); }
  bool merges_at_once() const override { return false; }
  bool ends_encoded(const CodecInfo& codec) const override { return !codec.identity; }

  std::vector<Buffer> build_partition(PartitionBuilder& builder) const override {
    if (builder.merges_payloads()) return in_rounds(builder);
    const std::uint32_t n = builder.size();
    const std::uint32_t next = (builder.self() + 1) % n;
    const std::uint32_t before = (builder.self() + n - 1) % n;
    const std::uint32_t hop = (builder.self() + n - builder.owner() - 1) % n;  // 0 at the starter, n-1 at the owner
    const bool ends = hop == n - 1;
    Buffer carried = hop == 0 ? builder.contribution() : add(builder, before, hop);
    if (!ends) {
      builder.send(next, kReduce, carried, true);
      carried = builder.identity() ? WorkflowBuilder::output() : builder.payload_slot();
      builder.recv(before, kBroadcast, carried, false);
    }
    if (!ends || builder.gathers()) builder.deliver({carried});
    if (next != builder.owner()) builder.send(next, kBroadcast, carried, false);
    return {carried};
  }

 private:
  static std::vector<Buffer> in_rounds(PartitionBuilder& builder) {
    std::vector<Buffer> results;
    for (std::uint32_t round = 0; round < builder.rounds(); ++round) {
      const Buffer mine = builder.contribution(round, round > 0 ? results.back() : Buffer{});
      results.push_back(builder.payload_slot(round));
      for (std::uint32_t part = 0; part < builder.size(); ++part)
        build_part(builder, round, part, mine, results.back());
    }
    builder.deliver(results);
    return results;
  }

  /// Part `part` of a round's payloads, which ends at the member of that number, added up into `result`.
  static void build_part(PartitionBuilder& builder, std::uint32_t round, std::uint32_t part, Buffer mine,
                         Buffer result) {
    const std::uint32_t n = builder.size();
    const std::int64_t elements = builder.elements_of(mine);
    const Range range{elements * part / n, elements * (part + 1) / n};
    if (range.size() == 0) return;
    const std::uint32_t next = (builder.self() + 1) % n;
    const std::uint32_t before = (builder.self() + n - 1) % n;
    const std::uint32_t hop = (builder.self() + n - part - 1) % n;  // 0 at the starter, n-1 where it ends
    const bool ends = hop == n - 1;
    const auto number = static_cast<std::uint8_t>(round);
    const std::uint32_t message = round * n + part;
    std::vector<Buffer> sources;
    if (hop > 0) {
      sources.push_back(builder.part_slot(round, range));
      builder.recv(before, kReduce, sources.back(), true, message, hop > 1 || builder.sums(before));
    }
    sources.push_back(mine);
    Buffer carried = builder.part_slot(round, range);
    builder.compute(Primitive::merge, sources,
                    {.round = number, .final = ends, .write_to = carried, .elements = range});
    if (!ends) {
      builder.send(next, kReduce, carried, true, message);
      carried = builder.part_slot(round, range);
      builder.recv(before, kBroadcast, carried, false, message);
    }
    if (next != part) builder.send(next, kBroadcast, carried, false, message);
    builder.compute(Primitive::merge, {carried}, {.round = number, .write_to = result, .elements = range});
  }

  /// Adds this member's contribution to the sum that comes; returns where the new sum is.
  static Buffer add(PartitionBuilder& builder, std::uint32_t before, std::uint32_t hop) {
    ComputeOptions options{.role = Role::owner, .feedback = true};
    options.final = options.deliver = hop == builder.size() - 1 && !builder.gathers();
    if (builder.identity() || options.deliver) options.write_to = WorkflowBuilder::output();
    if (!builder.identity()) options.encode_to = builder.payload_slot();
    std::vector<Buffer> contributions{builder.payload_slot()};
    builder.recv(before, kReduce, contributions.front(), true, 0, hop > 1 || builder.sums(before));
    contributions.insert(contributions.end(), builder.local_contributions().begin(),
                         builder.local_contributions().end());
    builder.compute(Primitive::merge, contributions, options);
    return builder.identity() ? options.write_to : options.encode_to;
  }
};

}  // namespace

const FlatRoute& ring_route() {
  static const Ring route;
  return route;
}

}  // namespace casync
