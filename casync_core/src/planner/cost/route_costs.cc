#include "planner/cost/route_costs.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "casync/error.hpp"
#include "collectives/global_graph.hpp"

namespace casync {
namespace {

constexpr std::size_t kUnit = 1 << 10;  // bytes of a payload of one partition: any will do

/// A codec in whose place a route builds: cut anywhere, with payloads of one size. What a route does depends on what
/// the codec says of itself.
class StandIn final : public Codec {
 public:
  explicit StandIn(CodecInfo info) : info_(std::move(info)) { info_.whole = false; }

  const CodecInfo& info() const override { return info_; }
  std::int64_t cut(const Shape& /*shape*/, std::int64_t element) const override { return element; }
  std::size_t bound(const Shape& /*shape*/, DType /*dtype*/, const Range& range, int /*round*/) const override {
    return static_cast<std::size_t>(range.size()) * kUnit;
  }
  void run(std::span<Segment> /*segments*/) const override { CASYNC_CHECK(false, "nothing is computed here"); }

 private:
  CodecInfo info_;
};

/// Whether a buffer has what several payloads have, without what is zero in all of them.
bool is_union(const Workflow& workflow, Buffer buffer) {
  return buffer.kind == BufferKind::slot && workflow.slots[buffer.slot].form == Form::nonzeros;
}

/// Of a count per rank or per host: the mean and the most.
Share share_of(const std::vector<double>& counts) {
  Share share;
  for (const double count : counts) {
    share.mean += count / static_cast<double>(counts.size());
    share.busiest = std::max(share.busiest, count);
  }
  return share;
}

/// Counts in both directions; what comes in somewhere went out elsewhere, so the mean is that of one direction.
struct Both {
  std::vector<double> out, in;
  explicit Both(std::size_t size) : out(size), in(size) {}
  Share share() const {
    Share share = share_of(out);
    share.busiest = std::max(share.busiest, share_of(in).busiest);
    return share;
  }
};

/// The longest run of equal keys.
template <typename Key>
double most_of_one(std::vector<Key> keys) {
  std::ranges::sort(keys);
  double most = 0, run = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    run = i > 0 && keys[i] == keys[i - 1] ? run + 1 : 1;
    most = std::max(most, run);
  }
  return most;
}

}  // namespace

RouteCounts::RouteCounts(const Route& route, const CodecInfo& codec, std::span<const std::uint32_t> host_of)
    : host_of_(host_of.begin(), host_of.end()) {
  for (const std::uint32_t host : host_of) hosts_ = std::max(hosts_, host + 1);
  const StandIn stand_in(codec);
  turn_ = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(route.owners(host_of).size()));
  WorkflowRequest request;
  request.shape = {turn_, 1};
  request.codec = &stand_in;
  request.route = &route;
  request.partitions = turn_;
  request.host_of = host_of_;
  const GlobalGraph graph(request);
  const double raw = static_cast<double>(size_of(request.dtype));
  const double unit = codec.identity ? raw : static_cast<double>(kUnit);
  const auto rounds = static_cast<double>(codec.rounds.size());
  for (Rank m = 0; m < graph.members().size(); ++m) {
    const Workflow& workflow = graph.members()[m];
    for (std::size_t t = 0; t < workflow.tasks.size(); ++t) {
      const Task& task = workflow.tasks[t];
      const GlobalGraph::TaskFacts& facts = graph.facts(m, t);
      encodes_ = std::max(encodes_, facts.encodes);
      decodes_ = std::max(decodes_, facts.decodes);
      layers_ = std::max(layers_, facts.layer + 1);
      if (task.primitive == Primitive::send) {
        const bool is_raw = task.data.kind != BufferKind::slot || workflow.slots[task.data.slot].raw;
        const auto bytes = static_cast<double>(graph.bytes_of(workflow, task));
        const bool payload = codec.identity || !is_raw;
        double payloads = payload ? bytes / unit / rounds : 0;
        if (is_union(workflow, task.data)) payloads = workflow.contributions;  // at most
        messages_.push_back({facts.sends_before, task.partition, m, task.peer, payloads, payload ? 0 : bytes / raw});
        layers_ = std::max(layers_, facts.sends_before + 2);
      }
      if (!computes(task)) continue;
      Call call{facts.layer, task.partition, m, 0, 0, 0, facts.leads_to_send};
      if (task.form != Form::payload) {  // elements are added up or copied
        double part = 1;
        if (task.form == Form::part) {
          const std::size_t element = size_of(codec.rounds[task.round].element);
          part = static_cast<double>(task.elements.size()) * static_cast<double>(element) / unit / rounds;
        }
        call.merges = part * std::max(1U, task.source_count - 1);
        calls_.push_back(call);
        continue;
      }
      const double payloads = codec.identity ? 0 : payloads_among(workflow, task);
      call.merges = std::max(0.0, task.source_count - payloads - 1);
      call.decodes = payloads;
      if (!codec.identity && task.encode_to.kind != BufferKind::none) call.encodes = 1 / rounds;
      if (merges_payloads(codec) && payloads > 0) {
        call.encodes = 0;
        call.decodes = task.write_to.kind != BufferKind::none ? 1 : 0;
      }
      calls_.push_back(call);
    }
  }
  if (codec.identity) encodes_ = decodes_ = 0;
}

RouteCosts RouteCounts::at(std::uint32_t partitions) const {
  const std::size_t members = host_of_.size();
  const auto times = [&](std::uint32_t position) {
    return static_cast<double>(partitions / turn_ + (position < partitions % turn_ ? 1 : 0));
  };
  RouteCosts costs;
  costs.turn = turn_;
  costs.hops = layers_ - 1;
  costs.encodes = encodes_;
  costs.decodes = decodes_;
  costs.layers.resize(layers_);

  struct Computed {
    explicit Computed(std::size_t size) : encodes(size), decodes(size), merges(size), tasks(size) {}
    std::vector<double> encodes, decodes, merges, tasks;
    Calls calls() const { return {share_of(encodes), share_of(decodes), share_of(merges), share_of(tasks).busiest}; }
  };
  struct Sent {
    Sent(std::size_t ends, std::size_t members) : payloads(ends), raws(ends), messages(members) {}
    Both payloads, raws, messages;
    std::vector<std::pair<Rank, Rank>> pairs;  // (to, from)
    std::vector<std::pair<std::uint32_t, Rank>> by_receiver, by_sender;
    std::map<std::uint32_t, double> partitions;
    RouteTraffic traffic(double all) const {
      RouteTraffic traffic{payloads.share(), raws.share(), messages.share()};
      for (const auto& [position, count] : partitions) traffic.part += count / all;
      const std::set<std::pair<Rank, Rank>> different(pairs.begin(), pairs.end());
      std::vector<Rank> receivers;
      for (const auto& [to, from] : different) receivers.push_back(to);
      traffic.senders = most_of_one(receivers);
      traffic.fan_in = most_of_one(by_receiver);
      traffic.fan_out = most_of_one(by_sender);
      return traffic;
    }
  };
  struct Counted {
    Counted(std::size_t hosts, std::size_t members)
        : leading(members), ending(members), between(hosts, members), inside(members, members) {}
    Computed leading, ending;
    Sent between, inside;
  };
  std::vector<Counted> counted(layers_, Counted(hosts_, members));
  for (const Call& call : calls_) {
    const double count = times(call.partition);
    if (count == 0) continue;
    Computed& of = call.leads ? counted[call.layer].leading : counted[call.layer].ending;
    of.encodes[call.rank] += count * call.encodes;
    of.decodes[call.rank] += count * call.decodes;
    of.merges[call.rank] += count * call.merges;
    of.tasks[call.rank] += count;
    if (call.leads) continue;
    for (auto [most, one] : {std::pair{&costs.last.encodes, call.encodes},
                             {&costs.last.decodes, call.decodes},
                             {&costs.last.merges, call.merges}}) {
      most->busiest = std::max(most->busiest, one);
    }
  }
  Both rank_payloads(members), rank_raws(members), host_payloads(hosts_), host_raws(hosts_);
  std::vector<double> sent(members);
  for (const Message& message : messages_) {
    const double count = times(message.partition);
    if (count == 0) continue;
    const std::uint32_t from_host = host_of_[message.from];
    const std::uint32_t to_host = host_of_[message.to];
    const bool across = from_host != to_host;
    Sent& of = across ? counted[message.layer].between : counted[message.layer].inside;
    const auto add = [count](Both& both, std::uint32_t from, std::uint32_t to, double amount) {
      both.out[from] += count * amount;
      both.in[to] += count * amount;
    };
    add(of.payloads, across ? from_host : message.from, across ? to_host : message.to, message.payloads);
    add(of.raws, across ? from_host : message.from, across ? to_host : message.to, message.raws);
    add(of.messages, message.from, message.to, 1);
    of.partitions[message.partition] = count;
    of.pairs.emplace_back(message.to, message.from);
    of.by_receiver.emplace_back(message.partition, message.to);
    of.by_sender.emplace_back(message.partition, message.from);
    add(rank_payloads, message.from, message.to, message.payloads);
    add(rank_raws, message.from, message.to, message.raws);
    if (across) {
      add(host_payloads, from_host, to_host, message.payloads);
      add(host_raws, from_host, to_host, message.raws);
    }
    sent[message.from] += count;
  }
  for (std::size_t l = 0; l < layers_; ++l) {
    costs.layers[l] = {counted[l].leading.calls(), counted[l].ending.calls(), counted[l].between.traffic(partitions),
                       counted[l].inside.traffic(partitions)};
  }
  costs.messages = share_of(sent).busiest;
  costs.rank_payloads = rank_payloads.share().busiest;
  costs.rank_raws = rank_raws.share().busiest;
  costs.host_payloads = host_payloads.share().busiest;
  costs.host_raws = host_raws.share().busiest;
  return costs;
}

}  // namespace casync
