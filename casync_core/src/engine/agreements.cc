#include "engine/agreements.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "casync/error.hpp"
#include "casync/route.hpp"

namespace casync {
namespace {

constexpr std::int64_t kMostElements = std::numeric_limits<std::int64_t>::max() / 8;  // that have a length in bytes

/// The elements of each of `rows`. Throws CorruptPayload for what no memory can hold.
std::vector<std::int64_t> elements_of(const std::vector<std::int64_t>& rows, const std::string& name,
                                      const Signature& signature) {
  std::vector<std::int64_t> elements;
  std::int64_t most = kMostElements / std::max<std::int64_t>(signature.shape.cols, 1);
  for (const std::int64_t count : rows) {
    if (count < 0 || count > most) {
      throw CorruptPayload(detail::concat("an ", name_of(signature.kind), " of tensor ", name, " with ", count,
                                          " rows of ", signature.shape.cols, " elements cannot be"),
                           {.tensor = name, .op = signature.kind});
    }
    most -= count;
    elements.push_back(count * signature.shape.cols);
  }
  return elements;
}

}  // namespace

Agreements::Agreements(std::uint32_t member, std::vector<std::uint32_t> host_of, std::size_t inline_bytes,
                       CodecMaker codecs, LeastUsed::Limits kept)
    : member_(member),
      host_of_(std::move(host_of)),
      inline_bytes_(inline_bytes),
      codecs_(std::move(codecs)),
      none_(codecs_("none")),
      nonzeros_(codecs_("nonzeros")),
      parts_(codecs_("parts")),
      hold_(codecs_("hold")),
      kept_(kept) {}

const Agreements::Op& Agreements::agree(const Agreement& agreement, std::uint32_t name, const Signature& signature,
                                        const std::vector<std::int64_t>& splits) {
  Op& op = ops_[agreement.op];
  op.evicted = false;
  if (op.name != kNone && (op.name != name || (lasts(signature.kind) && op.signature != signature))) {
    throw CorruptPayload(detail::concat("an agreement that makes tensor ", agreement.name, " operation ", agreement.op,
                                        ", which other terms have already"),
                         {.tensor = agreement.name, .op = signature.kind});
  }
  if (op.name != kNone && lasts(signature.kind) && op.plan == agreement.plan) return op;
  const std::uint32_t turns = host_of_.size() > 1 ? agreement.plan.period : 1;  // a world of one is the identity
  std::vector<std::shared_ptr<const TaskGraph>> graphs;
  for (std::uint32_t turn = 0; turn < turns; ++turn)  // first: where it throws, nothing is agreed on
    graphs.push_back(make_graph(agreement, signature, splits, turn, false));
  op.graphs = std::move(graphs);
  op.name = name;
  op.signature = signature;
  op.plan = agreement.plan;
  if (!priority_) priority_ = priority_of(op.plan, signature);
  ranked_ |= *priority_ != priority_of(op.plan, signature);
  const TaskGraph& graph = *op.graphs.front();
  op.settling.clear();
  for (std::uint32_t turn = 0; turn < turns && graph.codec->agreed() > 0; ++turn)
    op.settling.push_back(make_graph(agreement, signature, splits, turn, true));
  op.settled = settled_by(graph.codec->info().spec);
  const bool from_all = signature.kind == OpKind::allreduce && make_route(agreement.plan.topology)->merges_at_once();
  // Else every run waits for a start, which may bring the next plan.
  const bool lasts = agreement.plan.until == 0 && !agreement.plan.on_trial && turns == 1;
  op.eager = lasts && from_all && graph.codec->info().identity && graph.largest_message <= inline_bytes_ &&
             graph.largest_message > 0;  // what sends nothing ends before the others have submitted it
  return op;
}

const Agreements::Op* Agreements::find(std::uint32_t op) const {
  const auto at = ops_.find(op);
  return at == ops_.end() || at->second.name == kNone ? nullptr : &at->second;
}

void Agreements::use(std::uint32_t number, std::uint64_t name_hash) {
  Op& op = ops_[number];
  if (op.place) {
    kept_.use(*op.place);
  } else {
    op.place = kept_.add(number, name_hash);
  }
}

bool Agreements::use_again(std::uint32_t number) {
  const auto at = ops_.find(number);
  if (at == ops_.end() || !at->second.place) return false;
  kept_.use(*at->second.place);
  return true;
}

void Agreements::restore(std::uint32_t number, const GradientPlan& plan) {
  const auto at = ops_.find(number);
  if (at != ops_.end() && at->second.plan == plan) at->second.evicted = false;
}

void Agreements::erase(std::uint32_t number) {
  const auto at = ops_.find(number);
  if (at != ops_.end() && !at->second.place && at->second.early.empty()) ops_.erase(at);
}

std::optional<std::uint32_t> Agreements::evict() {
  const auto number = kept_.evict([](std::uint32_t /*op*/) { return true; });
  if (!number) return std::nullopt;
  Op& op = ops_.at(*number);
  op.place.reset();
  op.evicted = true;
  return number;
}

std::vector<Agreements::Early> Agreements::claim(std::uint32_t op, std::uint32_t sequence) {
  std::vector<Early> claimed;
  const auto at = ops_.find(op);
  if (at == ops_.end()) return claimed;
  std::erase_if(at->second.early, [&](const Early& message) {
    const bool matches = message.sequence == sequence;
    if (matches) claimed.push_back(message);
    return matches;
  });
  return claimed;
}

std::vector<std::uint64_t> Agreements::forget(std::uint32_t name, std::uint32_t sequence) {
  std::vector<std::uint64_t> message_ids;
  for (auto& [number, op] : ops_) {
    if (op.name != name) continue;
    std::erase_if(op.early, [&](const Early& message) {
      if (message.sequence > sequence) return false;
      message_ids.push_back(message.message_id);
      return true;
    });
  }
  return message_ids;
}

std::vector<std::uint64_t> Agreements::forget_all() {
  std::vector<std::uint64_t> message_ids;
  for (auto& [number, op] : ops_) {
    for (const Early& message : std::exchange(op.early, {})) message_ids.push_back(message.message_id);
  }
  return message_ids;
}

std::shared_ptr<const TaskGraph> Agreements::make_graph(const Agreement& agreement, const Signature& signature,
                                                        const std::vector<std::int64_t>& splits, std::uint32_t turn,
                                                        bool settles) {
  // A world of one is the identity, in the gradient's own precision.
  auto codec = host_of_.size() == 1 || agreement.plan.codec == "none" ? none_ : codecs_(agreement.plan.codec);
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  const bool compressible = reduces(signature.kind) && is_floating(signature.dtype) &&
                            (sums || (signature.op == ReduceOp::adasum && takes_adasum(codec->info())));
  if (!codec->info().identity && !compressible) {
    throw CorruptPayload(detail::concat("an agreement that tensor ", agreement.name, " goes with codec ",
                                        codec->info().spec, ", which cannot carry it"),
                         {.tensor = agreement.name, .op = signature.kind});
  }
  const std::uint32_t period = host_of_.size() > 1 ? agreement.plan.period : 1;
  if (period > 1 && !compressible) {
    throw CorruptPayload(detail::concat("an agreement that tensor ", agreement.name, " is synchronised in some steps, ",
                                        "though it has no residual"),
                         {.tensor = agreement.name, .op = signature.kind});
  }
  WorkflowRequest request;
  request.kind = signature.kind;
  request.shape = signature.shape;
  request.dtype = signature.dtype;
  request.codec = codec.get();
  request.op = signature.op;
  const auto route = make_route(agreement.plan.topology);
  request.route = route.get();
  request.partitions = agreement.plan.partitions;
  request.first_owner = agreement.plan.first_owner;
  request.settles = settles;
  request.period = period;
  request.turn = turn;
  request.member = member_;
  request.root = static_cast<std::uint32_t>(signature.root);
  request.host_of = host_of_;
  const bool given = signature.kind == OpKind::allgather || signature.kind == OpKind::alltoall;
  if (given) {
    request.counts = elements_of(agreement.rows, agreement.name, signature);
    request.shape.rows = std::accumulate(agreement.rows.begin(), agreement.rows.end(), std::int64_t{0});
    request.splits = elements_of(splits, agreement.name, signature);
  }
  // Any other codec has its own to keep, and what waits is kept in any case.
  const bool provisional = agreement.plan.until > 0 && codec->info().identity && period == 1;
  const bool counts = provisional || agreement.plan.period > 1;
  const Coefficient coefficient = period > 1 ? agreement.plan.coefficient : Coefficient{};
  const auto build = [&] {
    auto graph = std::make_shared<TaskGraph>(request);
    graph->rows = agreement.rows;
    graph->codec = codec;
    graph->nonzeros = nonzeros_;
    graph->parts = parts_;
    graph->none = none_;
    graph->hold = hold_;
    graph->coefficient = coefficient;
    graph->counts = counts;
    graph->provisional = provisional;
    graph->host_only |= agreement.plan.on_host;
    return graph;
  };
  if (!lasts(signature.kind)) return build();
  std::weak_ptr<const TaskGraph>& known =
      graphs_[{request.kind, request.shape.rows, request.shape.cols, request.dtype, codec->info().spec, request.op,
               agreement.plan.topology, request.partitions, request.first_owner, period, coefficient, turn,
               request.settles, request.root, provisional, counts, agreement.plan.on_host}];
  std::shared_ptr<const TaskGraph> graph = known.lock();
  if (graph == nullptr) known = graph = build();
  if (graphs_.size() >= graphs_most_) {
    std::erase_if(graphs_, [](const auto& one) { return one.second.expired(); });
    graphs_most_ = std::max<std::size_t>(256, 2 * graphs_.size());
  }
  return graph;
}

}  // namespace casync
