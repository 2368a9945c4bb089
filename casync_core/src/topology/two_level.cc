// Two levels: the ranks of one host first, uncompressed over shared memory; then the hosts, compressed over the network
// (paper: section 5.1, local aggregation). Partition p is led on each host by one of its ranks, a different one for
// neighbouring partitions, so no core and no network queue does the work of all; one host's leader owns p.
//
//   step 1  each rank sends its raw contribution to its host's leader of p (windowed)
//   step 2  the leader adds them in rank order, encodes, and sends the sum to the owner (windowed)
//   step 3  the owner adds, host by host, its own ranks' raw contributions and the other hosts' sums, takes the mean,
//           and encodes
//   step 4  the owner sends the result to the leaders, a leader passes it on to its ranks, all decode the same bytes
//
// hops 4; bytes per direction between hosts 2(H-1)/H of the encoded gradient per host when K is a multiple of H times
// L. Hosts may have unequal numbers of ranks. With `none` the sums are the raw elements.
#include <algorithm>
#include <map>

#include "topology/topologies.hpp"

namespace casync {
namespace {

enum Step : std::uint32_t { kGather = 0, kPush = 1, kPull = 2, kScatter = 3, kSteps = 4 };

}  // namespace

void two_level(WorkflowBuilder& builder) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> hosts;
  for (std::uint32_t m = 0; m < builder.members(); ++m) hosts[builder.request().host_of[m]].push_back(m);
  std::vector<std::vector<std::uint32_t>> members;
  for (auto& [host, list] : hosts) members.push_back(list);
  const std::uint32_t self = builder.request().member;
  const bool identity = builder.identity();

  for (std::uint32_t p = 0; p < builder.partitions(); ++p) {
    const std::uint32_t position = builder.request().first_owner + p;
    const std::uint32_t owner_host = position % static_cast<std::uint32_t>(members.size());
    std::vector<std::uint32_t> leaders;
    std::uint32_t my_host = 0;
    for (std::uint32_t h = 0; h < members.size(); ++h) {
      // Partitions of one owner host come every H positions: dividing by H lets its ranks take turns.
      const std::uint32_t turn = position / static_cast<std::uint32_t>(members.size());
      leaders.push_back(members[h][turn % members[h].size()]);
      if (std::find(members[h].begin(), members[h].end(), self) != members[h].end()) my_host = h;
    }
    const auto tag = [p](Step step) { return kSteps * p + step; };
    const std::uint32_t leader = leaders[my_host];
    const auto receive_result = [&](std::uint32_t from, Step step) {
      const Buffer result = identity ? WorkflowBuilder::output() : builder.payload_slot(p);
      builder.recv(p, from, tag(step), result);
      return result;
    };
    const auto deliver = [&](Buffer result) {
      if (identity) return;
      const Buffer received[] = {result};
      builder.compute(Primitive::decode, p, received, {.deliver = true, .write_to = WorkflowBuilder::output()});
    };

    if (self != leader) {
      builder.send(p, leader, tag(kGather), WorkflowBuilder::input(), true);
      deliver(receive_result(leader, kScatter));
      continue;
    }

    std::vector<Buffer> local;
    for (const std::uint32_t m : members[my_host]) {
      local.push_back(m == self ? WorkflowBuilder::input() : builder.raw_slot(p));
      if (m != self) builder.recv(p, m, tag(kGather), local.back(), true);
    }
    Buffer result;
    if (my_host == owner_host) {
      std::vector<Buffer> contributions;
      for (std::uint32_t h = 0; h < members.size(); ++h) {
        if (h == my_host) {
          contributions.insert(contributions.end(), local.begin(), local.end());
        } else {
          contributions.push_back(builder.payload_slot(p));
          builder.recv(p, leaders[h], tag(kPush), contributions.back(), true, members[h].size() > 1);
        }
      }
      ComputeOptions options{.role = Role::owner, .feedback = true, .final = true, .deliver = true};
      options.write_to = WorkflowBuilder::output();
      if (!identity) options.encode_to = builder.payload_slot(p);
      builder.compute(Primitive::merge, p, contributions, options);
      result = identity ? WorkflowBuilder::output() : options.encode_to;
      for (std::uint32_t h = 0; h < members.size(); ++h) {
        if (h != my_host) builder.send(p, leaders[h], tag(kPull), result);
      }
    } else {
      ComputeOptions options{.feedback = true};
      (identity ? options.write_to : options.encode_to) =
          identity ? WorkflowBuilder::output() : builder.payload_slot(p);
      const Primitive primitive = local.size() == 1 ? Primitive::encode : Primitive::merge;
      Buffer sum = options.encode_to;
      if (identity && local.size() == 1) {
        sum = WorkflowBuilder::input();
      } else {
        builder.compute(primitive, p, local, options);
        if (identity) sum = WorkflowBuilder::output();
      }
      builder.send(p, leaders[owner_host], tag(kPush), sum, true);
      result = receive_result(leaders[owner_host], kPull);
      deliver(result);
    }
    for (const std::uint32_t m : members[my_host]) {
      if (m != self) builder.send(p, m, tag(kScatter), result);
    }
  }
}

}  // namespace casync
