// A binary tree, as an example of what it takes to add a route: this file. Ranks are numbered from the owner on; that
// of number i sends its sum to number (i - 1) / 2, and gets the result from there.
#include "routes/routes.hpp"
#include "routes/tree.hpp"

namespace casync {
namespace {

class BinaryTree final : public FlatRoute {
 public:
  std::string_view name() const override { return "tree"; }
  std::vector<Routine> routines() const override { return {Routine::reduce, Routine::broadcast}; }
  std::optional<std::string> why_unsupported(const RouteRequest& request) const override {
    return why_not_by_ways(request);
  }
  std::vector<Rank> owners(std::span<const std::uint32_t> host_of) const override { return everybody(host_of); }
  bool merges_at_once() const override { return false; }
  bool ends_encoded(const CodecInfo& codec) const override { return !codec.identity; }

  std::vector<Buffer> build_partition(PartitionBuilder& builder) const override {
    const std::uint32_t n = builder.size();
    Ways ways{builder.owner(), std::vector<std::uint32_t>(n, builder.owner()), {}};
    for (std::uint32_t i = 1; i < n; ++i) ways.sums_to[(builder.owner() + i) % n] = (builder.owner() + (i - 1) / 2) % n;
    ways.result_from = ways.sums_to;
    return build_ways(builder, ways);
  }
};

const BinaryTree kTree;
const bool kAdded = add_route(kTree);

}  // namespace
}  // namespace casync
