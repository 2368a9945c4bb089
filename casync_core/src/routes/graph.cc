// A route that a user gives, as a graph of ranks (paper: section 3.1). Its text is
//
//   graph(1>0 2>0;0>1 0>2)
//
// The edges before the semicolon carry sums, those after it results: each rank adds what it receives to its own
// contribution and sends the sum on, up to one rank that sends to none; from there the result goes back. Several graphs
// are separated by "|": partition p takes the one whose number is p modulo how many there are. The same text on all
// ranks means the same graph.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>

#include "casync/error.hpp"
#include "common/hash.hpp"
#include "routes/routes.hpp"
#include "routes/tree.hpp"

namespace casync {
namespace {

constexpr std::string_view kOpen = "graph(";
constexpr std::uint32_t kNone = ~0U;
constexpr std::uint32_t kMostRanks = 1U << 16U;

[[noreturn]] void refuse(std::string_view why) {
  throw InvalidArgument(detail::concat("the graph of a topology: ", why));
}

std::string rank(std::uint32_t number) { return detail::concat("rank ", number); }

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::uint32_t number_of(std::string_view text) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || number >= kMostRanks)
    refuse(detail::concat("'", text, "' is no rank"));
  return number;
}

/// People see this instead of the text (casync/plan/topology.py).
std::string digest(std::string_view text) {
  std::array<char, 9> hex{};
  std::snprintf(hex.data(), hex.size(), "%08x", static_cast<std::uint32_t>(hash_text(text)));
  return hex.data();
}

struct Edge {
  std::uint32_t from, to;
};

std::vector<Edge> edges_of(std::string_view text) {
  std::vector<Edge> edges;
  if (text.empty()) return edges;
  for (const std::string_view edge : split(text, ' ')) {
    const std::size_t arrow = edge.find('>');
    if (arrow == std::string_view::npos) refuse(detail::concat("'", edge, "' is no edge; write FROM>TO"));
    edges.push_back({number_of(edge.substr(0, arrow)), number_of(edge.substr(arrow + 1))});
    if (edges.back().from == edges.back().to) refuse(detail::concat(rank(edges.back().from), " sends to itself"));
  }
  return edges;
}

/// Who never comes to `root` by going `above` from each to the next.
std::optional<std::uint32_t> lost(const std::vector<std::uint32_t>& above, std::uint32_t root) {
  for (std::uint32_t m = 0; m < above.size(); ++m) {
    std::uint32_t at = m;
    for (std::size_t steps = 0; at != root; ++steps) {
      if (steps > above.size()) return m;
      at = above[at];
    }
  }
  return std::nullopt;
}

/// Every contribution reaches every rank exactly once if sums go up a tree and results go down one, from its root.
Ways ways_of(std::string_view text) {
  const auto halves = split(text, ';');
  if (halves.size() != 2) refuse("it needs edges for sums, a semicolon, and edges for results");
  const std::vector<Edge> sums = edges_of(halves[0]);
  const std::vector<Edge> results = edges_of(halves[1]);
  std::uint32_t ranks = 1;
  for (const auto* edges : {&sums, &results}) {
    for (const Edge& edge : *edges) ranks = std::max({ranks, edge.from + 1, edge.to + 1});
  }
  Ways ways;
  ways.sums_to.assign(ranks, kNone);
  ways.result_from.assign(ranks, kNone);
  for (const Edge& edge : sums) {
    std::uint32_t& to = ways.sums_to[edge.from];
    if (to != kNone) {
      refuse(detail::concat(rank(edge.from), " sends its sum to ", rank(to), " and to ", rank(edge.to),
                            ", so its contribution would count twice"));
    }
    to = edge.to;
  }
  for (const Edge& edge : results) {
    std::uint32_t& from = ways.result_from[edge.to];
    if (from != kNone) {
      refuse(detail::concat(rank(edge.to), " gets the result from ", rank(from), " and from ", rank(edge.from)));
    }
    from = edge.from;
  }
  const auto roots = std::ranges::count(ways.sums_to, kNone);
  const auto root = static_cast<std::uint32_t>(std::ranges::find(ways.sums_to, kNone) - ways.sums_to.begin());
  if (roots == 0) refuse("sums go round in a circle: no rank ends with all of them");
  if (roots > 1) {
    const auto next = std::find(ways.sums_to.begin() + root + 1, ways.sums_to.end(), kNone);
    refuse(detail::concat(rank(root), " and ", rank(static_cast<std::uint32_t>(next - ways.sums_to.begin())),
                          " both send their sums to nobody, so no rank has all contributions"));
  }
  ways.root = ways.sums_to[root] = root;
  if (const auto one = lost(ways.sums_to, root))
    refuse(detail::concat("the contribution of ", rank(*one), " never reaches ", rank(root), ", which has the sum"));
  if (ways.result_from[root] != kNone) refuse(detail::concat(rank(root), " makes the result, and is sent it too"));
  ways.result_from[root] = root;
  for (std::uint32_t m = 0; m < ranks; ++m) {
    if (ways.result_from[m] == kNone) refuse(detail::concat("nobody sends ", rank(m), " the result"));
  }
  if (const auto one = lost(ways.result_from, root)) refuse(detail::concat("the result never reaches ", rank(*one)));
  return ways;
}

class TopologyGraph final : public Route {
 public:
  explicit TopologyGraph(std::string_view text) : name_(detail::concat("graph-", digest(text))) {
    for (const std::string_view one : split(text.substr(kOpen.size(), text.size() - kOpen.size() - 1), '|'))
      ways_.push_back(ways_of(one));
  }

  std::string_view name() const override { return name_; }
  std::vector<Phase> phases() const override {
    return {{Scope::flat, Routine::reduce}, {Scope::flat, Routine::broadcast}};
  }

  std::optional<std::string> why_unsupported(const RouteRequest& request) const override {
    for (const Ways& ways : ways_) {
      if (ways.sums_to.size() == request.host_of.size()) continue;
      return detail::concat("the world has ", request.host_of.size(), " ranks, and a graph of the topology ",
                            ways.sums_to.size());
    }
    return why_not_by_ways(request);
  }

  std::vector<Rank> owners(std::span<const std::uint32_t> /*host_of*/) const override {
    std::vector<Rank> roots;
    for (const Ways& ways : ways_) roots.push_back(ways.root);
    return roots;
  }

  bool merges_at_once() const override {
    return std::ranges::all_of(ways_, [](const Ways& ways) {
      return std::ranges::all_of(ways.sums_to, [&](std::uint32_t to) { return to == ways.root; });
    });
  }

  void build(WorkflowBuilder& builder) const override {
    std::vector<PartitionBuilder::Member> members;
    for (Rank m = 0; m < builder.members(); ++m) members.push_back({m, false});
    for (const std::uint32_t p : builder.sent()) {
      const Ways& ways = ways_[builder.position(p)];
      PartitionBuilder partition(builder, p, members, ways.root, {WorkflowBuilder::input()});
      build_ways(partition, ways);
    }
  }

 private:
  std::string name_;
  std::vector<Ways> ways_;
};

}  // namespace

std::shared_ptr<const Route> make_graph(std::string_view text) {
  if (!text.starts_with(kOpen) || !text.ends_with(')')) return nullptr;
  return std::make_shared<TopologyGraph>(text);
}

}  // namespace casync
