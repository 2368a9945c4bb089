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

std::optional<std::string> obstacle_to_ways(const Cargo& cargo) {
  if (cargo.codec.rounds.size() > 1 || cargo.codec.averages)
    return detail::concat("codec ", cargo.codec.spec, " merges payloads in rounds");
  return obstacle_to_parts(cargo);
}

std::vector<Buffer> lay_ways(Group& group, const Ways& ways) {
  const bool root = ways.root == group.self();
  const std::vector<Buffer> sources = collect(group, ways);
  Buffer result = WorkflowBuilder::output();
  Buffer sum;
  if (!root && sources.size() == group.own().size()) {
    sum = group.contribution();
  } else {
    ComputeOptions options{.role = root ? Role::owner : Role::worker, .feedback = true};
    options.final = options.deliver = root && !group.gathers();
    if (group.identity() || options.deliver) options.write_to = result;
    if (!group.identity()) options.encode_to = group.payload_slot();
    group.compute(Primitive::merge, sources, options);
    sum = group.identity() ? result : options.encode_to;
  }
  if (root) {
    result = sum;
  } else {
    group.send(ways.sums_to[group.self()], kUp, sum, true);
    if (!group.identity()) result = group.payload_slot();
    group.recv(ways.result_from[group.self()], kDown, result, false);
  }
  for (const std::uint32_t member : below(ways.result_from, group.self())) group.send(member, kDown, result, false);
  if (!root || group.gathers()) group.deliver({result});
  return {result};
}

}  // namespace casync
