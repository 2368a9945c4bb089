#include "routes/contributions.hpp"

#include <map>
#include <utility>

#include "casync/error.hpp"

namespace casync::test {
namespace {

using Counts = std::vector<std::uint32_t>;  // per member: how often its contribution is in it

}  // namespace

std::string misrouted(const GlobalGraph& graph) {
  const std::size_t members = graph.members().size();
  // By member: the user's memory per partition, and the slots.
  std::vector<std::vector<Counts>> users(members), slots(members);
  std::vector<std::vector<Counts>> results(members);
  for (std::size_t m = 0; m < members; ++m) {
    const Workflow& workflow = graph.members()[m];
    Counts own(members, 0);
    own[m] = 1;
    users[m].assign(workflow.partitions.size(), own);
    results[m].assign(workflow.partitions.size(), Counts(members, 0));
    slots[m].assign(workflow.slots.size(), Counts(members, 0));
  }
  const auto at = [&](std::size_t m, std::uint32_t partition, Buffer buffer) -> Counts& {
    return buffer.kind == BufferKind::slot ? slots[m][buffer.slot] : users[m][partition];
  };
  std::map<std::size_t, Counts> under_way;  // by the global number of the receive
  for (const std::size_t i : graph.order()) {
    const auto [m, task] = graph.at(i);
    const Workflow& workflow = graph.members()[m];
    if (task->primitive == Primitive::send) {
      under_way[graph.receive_of(i)] = at(m, task->partition, task->data);
    } else if (task->primitive == Primitive::recv) {
      at(m, task->partition, task->data) = std::move(under_way[i]);
      under_way.erase(i);
      if (task->data.kind == BufferKind::output) results[m][task->partition] = at(m, task->partition, task->data);
    } else if (!task->settles) {
      Counts sum(members, 0);
      for (std::uint32_t s = 0; s < task->source_count; ++s) {
        const Counts& source = at(m, task->partition, workflow.sources[task->first_source + s]);
        for (std::size_t of = 0; of < members; ++of) sum[of] += source[of];
      }
      if (task->encode_to.kind != BufferKind::none) at(m, task->partition, task->encode_to) = sum;
      if (task->write_to.kind != BufferKind::none) at(m, task->partition, task->write_to) = sum;
      if (task->deliver) results[m][task->partition] = sum;
    }
  }
  std::string wrong;
  for (std::size_t m = 0; m < members; ++m) {
    for (std::size_t p = 0; p < results[m].size(); ++p) {
      for (std::size_t of = 0; of < members; ++of) {
        if (results[m][p][of] == 1) continue;
        wrong += detail::concat("of partition ", p, " rank ", m, " gets rank ", of, "'s contribution ",
                                results[m][p][of], " times; ");
      }
    }
  }
  return wrong;
}

}  // namespace casync::test
