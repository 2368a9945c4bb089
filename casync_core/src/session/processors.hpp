#pragma once

namespace casync {

/// Whether the ranks of a host have less than two processors each: one of them may use `usable` of the host's `online`
/// ones, and there are `ranks`. A rank that may not use all is bound, and shares those that it may use with nobody.
constexpr bool has_one_core(long usable, long online, long ranks) {
  const bool bound = usable < online;
  return usable < 2 * (bound ? 1 : ranks);
}

}  // namespace casync
