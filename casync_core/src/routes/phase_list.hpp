#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "casync/route.hpp"

/// The compression options of one tensor as ByteComp has them (section 4.2, table 3): which collective routines it goes
/// through, one after the other, and which of them carry payloads. Where encoding and decoding go on, on a device or on
/// a host, is not part of it. A list is valid if it is one of the 174 that the paper's decision tree has; with the
/// places these are its 4,341 options. Pure.
namespace casync {

/// What a phase carries.
enum class Carries : std::uint8_t {
  raw,     ///< elements of the gradient
  coded,   ///< payloads that are encoded for it
  passed,  ///< the payloads of the phase before, as they are
};
inline constexpr std::array<std::string_view, 3> kCarriesName{"raw", "coded", "passed"};
constexpr std::string_view name_of(Carries carries) { return kCarriesName[static_cast<std::size_t>(carries)]; }

struct ListedPhase {
  Scope scope = Scope::flat;
  Routine routine = Routine::allreduce;
  Carries carries = Carries::raw;
  friend bool operator==(const ListedPhase&, const ListedPhase&) = default;
};
using PhaseList = std::vector<ListedPhase>;

/// The list that a topology's text has: "phases(intra reduce_scatter, inter allgather coded, intra allgather)". A phase
/// that carries raw elements need not say so. Nothing if the text is not of that form; throws InvalidArgument for a
/// word that is not known.
std::optional<PhaseList> parse_phases(std::string_view text);

/// The one text of a list, as parse_phases reads it.
std::string text_of(const PhaseList& list);

/// Which rule of the decision tree a list breaks, and which phase does, as a sentence without a full stop; nothing if
/// it breaks none. Phases are counted from 0.
std::optional<std::string> why_not_valid(const PhaseList& list);

/// What a valid list does that no executor here does, as a clause: it keeps payloads that were not added up yet
/// (footnote 2 of the paper). Nothing if it is one of the 106 that are executed.
std::optional<std::string> why_not_executed(const PhaseList& list);

/// All valid lists: those without levels first, and each before those that differ from it in later phases.
std::vector<PhaseList> every_phase_list();

}  // namespace casync
