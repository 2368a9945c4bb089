#include "routes/tree.hpp"

#include "casync/error.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kUp = 0;
constexpr std::uint32_t kDown = 1;

std::vector<std::uint32_t> below(const std::vector<std::uint32_t>& above, std::uint32_t member) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t m = 0; m < above.size(); ++m) {
    if (m != member && above[m] == member) members.push_back(m);
  }
  return members;
}

/// What this member contributes, and what those below it do.
std::vector<Buffer> collect(PartitionBuilder& builder, const Ways& ways) {
  std::vector<Buffer> sources;
  for (std::uint32_t m = 0; m < builder.size(); ++m) {
    if (m == builder.self()) {
      sources.insert(sources.end(), builder.local_contributions().begin(), builder.local_contributions().end());
    } else if (ways.sums_to[m] == builder.self()) {
      const bool combined = builder.sums(m) || !below(ways.sums_to, m).empty();
      sources.push_back(builder.payload_slot());
      builder.recv(m, kUp, sources.back(), true, 0, combined);
    }
  }
  return sources;
}

}  // namespace

std::optional<std::string> why_not_by_ways(const RouteRequest& request) {
  if (merges_payloads(request.codec)) return detail::concat("codec ", request.codec.spec, " merges payloads in rounds");
  return why_not_in_parts(request);
}

std::vector<Buffer> build_ways(PartitionBuilder& builder, const Ways& ways) {
  const bool root = ways.root == builder.self();
  const std::vector<Buffer> sources = collect(builder, ways);
  Buffer result = WorkflowBuilder::output();
  Buffer sum;
  if (!root && sources.size() == builder.local_contributions().size()) {
    sum = builder.contribution();
  } else {
    ComputeOptions options{.role = root ? Role::owner : Role::worker, .feedback = true};
    options.final = options.deliver = root && !builder.gathers();
    if (builder.identity() || options.deliver) options.write_to = result;
    if (!builder.identity()) options.encode_to = builder.payload_slot();
    builder.compute(Primitive::merge, sources, options);
    sum = builder.identity() ? result : options.encode_to;
  }
  if (root) {
    result = sum;
  } else {
    builder.send(ways.sums_to[builder.self()], kUp, sum, true);
    if (!builder.identity()) result = builder.payload_slot();
    builder.recv(ways.result_from[builder.self()], kDown, result, false);
  }
  for (const std::uint32_t member : below(ways.result_from, builder.self())) builder.send(member, kDown, result, false);
  if (!root || builder.gathers()) builder.deliver({result});
  return {result};
}

}  // namespace casync
