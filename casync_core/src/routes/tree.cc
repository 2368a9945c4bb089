#include "routes/tree.hpp"

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
std::vector<Buffer> collect(Group& group, const Ways& ways) {
  std::vector<Buffer> sources;
  for (std::uint32_t m = 0; m < group.size(); ++m) {
    if (m == group.self()) {
      sources.insert(sources.end(), group.own().begin(), group.own().end());
    } else if (ways.sums_to[m] == group.self()) {
      const bool combined = group.sums(m) || !below(ways.sums_to, m).empty();
      sources.push_back(group.payload_slot());
      group.recv(m, kUp, sources.back(), true, 0, combined);
    }
  }
  return sources;
}

}  // namespace

Buffer lay_ways(Group& group, const Ways& ways) {
  const bool root = ways.root == group.self();
  Buffer result = WorkflowBuilder::output();
  if (root) {
    ComputeOptions options{.role = Role::owner, .feedback = true, .final = true, .deliver = true};
    options.write_to = result;
    const std::vector<Buffer> sources = collect(group, ways);
    if (!group.identity()) result = options.encode_to = group.payload_slot();
    group.compute(Primitive::merge, sources, options);
  } else {
    const std::vector<Buffer> sources = collect(group, ways);
    Buffer sum;
    if (sources.size() == group.own().size()) {
      sum = group.contribution();
    } else {
      ComputeOptions options{.feedback = true};
      sum = group.identity() ? (options.write_to = result) : (options.encode_to = group.payload_slot());
      group.compute(Primitive::merge, sources, options);
    }
    group.send(ways.sums_to[group.self()], kUp, sum, true);
    if (!group.identity()) result = group.payload_slot();
    group.recv(ways.result_from[group.self()], kDown, result, false);
  }
  for (const std::uint32_t member : below(ways.result_from, group.self())) group.send(member, kDown, result, false);
  if (!root) group.deliver(result);
  return result;
}

}  // namespace casync
