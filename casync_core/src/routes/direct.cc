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
  std::optional<std::string> obstacle(const Cargo& /*cargo*/) const override { return std::nullopt; }
  std::vector<Rank> owners(std::span<const std::uint32_t> /*host_of*/) const override { return {}; }
  bool merges_at_once() const override { return true; }
  bool ends_encoded(const CodecInfo& /*codec*/) const override { return false; }

  std::vector<Buffer> lay(Group& group) const override {
    Buffer previous;
    for (std::uint32_t round = 0; round < group.rounds(); ++round) {
      const bool last = round + 1 == group.rounds();
      const Buffer mine = group.contribution(round, previous);
      for (std::uint32_t step = 1; step < group.size(); ++step)
        group.send((group.self() + step) % group.size(), 0, mine, true, round);
      std::vector<Buffer> contributions;
      for (std::uint32_t m = 0; m < group.size(); ++m) {
        contributions.push_back(m == group.self() ? mine : group.payload_slot(round));
        if (m != group.self()) group.recv(m, 0, contributions.back(), true, round, group.sums(m));
      }
      ComputeOptions options{.round = static_cast<std::uint8_t>(round), .previous = previous};
      if (last) {
        options.final = options.deliver = true;
        options.write_to = WorkflowBuilder::output();
      } else {
        options.role = Role::owner;
        options.encode_to = previous = group.payload_slot(round);
      }
      group.compute(Primitive::merge, contributions, options);
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
