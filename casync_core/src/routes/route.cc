#include "casync/route.hpp"

#include <numeric>

#include "casync/error.hpp"
#include "routes/routes.hpp"

namespace casync {
namespace {

std::vector<const Route*>& known() {
  static std::vector<const Route*> routes{&direct_route(), &parameter_server_route(), &ring_route(),
                                          &two_level_route()};
  return routes;
}

/// "ps", or "ps" and what else `names` has, quoted.
std::string any_of(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) text += detail::concat(text.empty() ? "\"" : " or \"", name, "\"");
  return text;
}

}  // namespace

std::vector<Rank> everybody(std::span<const std::uint32_t> host_of) {
  std::vector<Rank> members(host_of.size());
  std::iota(members.begin(), members.end(), 0);
  return members;
}

std::optional<std::string> why_not_in_parts(const RouteRequest& request) {
  if (request.op == ReduceOp::adasum) return "op Adasum takes the whole gradient of all ranks at one place";
  return std::nullopt;
}

std::optional<std::string> why_not_merged_apart(const RouteRequest& request) {
  const CodecInfo& codec = request.codec;
  if (merges_payloads(codec) && !codec.fixed_size)
    return detail::concat("codec ", codec.spec, " merges payloads of different lengths");
  return why_not_in_parts(request);
}

std::shared_ptr<const Route> make_route(std::string_view name) {
  for (const Route* route : known()) {
    if (route->name() == name) return {std::shared_ptr<const Route>{}, route};
  }
  for (const Route* route : two_level_routes()) {
    if (route->name() == name) return {std::shared_ptr<const Route>{}, route};
  }
  if (auto graph = make_graph(name)) return graph;
  if (auto phases = make_phases(name)) return phases;
  std::string names = "auto";
  for (const std::string_view one : route_names()) names += detail::concat(", ", one);
  throw InvalidArgument(detail::concat("topology '", name, "' is not known; known: ", names, ", or phases(...)"));
}

std::vector<std::string_view> route_names() {
  std::vector<std::string_view> names;
  for (const Route* route : known()) names.push_back(route->name());
  return names;
}

std::vector<std::string_view> two_level_names() {
  std::vector<std::string_view> names;
  for (const Route* route : two_level_routes()) names.push_back(route->name());
  return names;
}

bool add_route(const Route& route) {
  known().push_back(&route);
  return true;
}

void check_supports(const Route& route, const RouteRequest& request) {
  const auto why_not = route.why_unsupported(request);
  if (!why_not) return;
  std::vector<std::string_view> others;
  for (const Route* other : known()) {
    if (!other->why_unsupported(request)) others.push_back(other->name());
  }
  throw InvalidArgument(
      detail::concat(*why_not, ", which topology ", route.name(), " does not carry; use topology ", any_of(others)));
}

}  // namespace casync
