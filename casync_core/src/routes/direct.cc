// Direct exchange: every member sends its contribution to every other, and all add them in member order.
//
// hops 1; bytes per direction N-1 times the encoded gradient; messages of a member K(N-1). The least latency there is,
// so small operations take it; and the way of `gather` codecs, whose payloads reach everybody and are never encoded
// again. With a codec a member's own contribution is its payload too, so all add the same bytes.
#include "routes/flat.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

class Direct final : public FlatRoute {
 public:
  std::string_view name() const override { return "direct"; }
  std::vector<Routine> routines() const override { return {Routine::allgather}; }
  std::optional<std::string> why_unsupported(const RouteRequest& /*request*/) const override { return std::nullopt; }
  std::vector<Rank> owners(std::span<const std::uint32_t> /*host_of*/) const override { return {}; }
  bool merges_at_once() const override { return true; }
  bool ends_encoded(const CodecInfo& /*codec*/) const override { return false; }

  std::vector<Buffer> build_partition(PartitionBuilder& builder) const override {
    Buffer previous;
    for (std::uint32_t round = 0; round < builder.rounds(); ++round) {
      const bool last = round + 1 == builder.rounds();
      const Buffer mine = builder.contribution(round, previous);
      for (std::uint32_t step = 1; step < builder.size(); ++step)
        builder.send((builder.self() + step) % builder.size(), 0, mine, true, round);
      std::vector<Buffer> contributions;
      for (std::uint32_t m = 0; m < builder.size(); ++m) {
        contributions.push_back(m == builder.self() ? mine : builder.payload_slot(round));
        if (m != builder.self()) builder.recv(m, 0, contributions.back(), true, round, builder.sums(m));
      }
      ComputeOptions options{.round = static_cast<std::uint8_t>(round), .previous = previous};
      if (last) {
        options.final = options.deliver = true;
        options.write_to = WorkflowBuilder::output();
      } else {
        options.role = Role::owner;
        options.encode_to = previous = builder.payload_slot(round);
      }
      builder.compute(Primitive::merge, contributions, options);
    }
    return {WorkflowBuilder::output()};
  }
};

}  // namespace

const FlatRoute& direct_route() {
  static const Direct route;
  return route;
}

}  // namespace casync
