#pragma once

#include "routes/flat.hpp"

/// CaSync's own routes, each in its file, which explains its steps before its code.
namespace casync {

const FlatRoute& direct_route();
const FlatRoute& parameter_server_route();
const FlatRoute& ring_route();
/// Two levels, and by the codec which way the leaders go.
const Route& two_level_route();
/// For each flat route that the leaders can go.
std::span<const Route* const> two_level_routes();
/// The route that a graph's text describes; null if the text is no graph's.
std::shared_ptr<const Route> make_graph(std::string_view text);
/// The route that a list of phases describes; null if the text is none. Throws InvalidArgument for a list that the
/// decision tree of phase_list.hpp does not have.
std::shared_ptr<const Route> make_phases(std::string_view text);

/// Owners where every member owns as many partitions.
std::vector<Rank> everybody(std::span<const std::uint32_t> host_of);

/// For a route that adds up some contributions before the others: an op that needs each.
std::optional<std::string> why_not_in_parts(const RouteRequest& request);
/// For a route that merges the contributions one after the other: what needs them all at one place.
std::optional<std::string> why_not_merged_apart(const RouteRequest& request);

}  // namespace casync
