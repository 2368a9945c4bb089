#include "routes/phase_list.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "casync/error.hpp"

namespace casync {
namespace {

constexpr std::string_view kOpen = "phases(";

/// First steps of a pair, each with its second step. Contributions go to the owners, and results come back from them.
struct Pair {
  Routine first;
  Routine second;
  bool of_payloads;
};
constexpr std::array<Pair, 4> kPairs{{{Routine::reduce_scatter, Routine::allgather, false},
                                      {Routine::reduce, Routine::broadcast, false},
                                      {Routine::alltoall, Routine::allgather, true},
                                      {Routine::gather, Routine::broadcast, true}}};

const Pair* pair_of(Routine first) {
  const auto* const found = std::ranges::find(kPairs, first, &Pair::first);
  return found == kPairs.end() ? nullptr : found;
}

constexpr bool has_payloads(Carries carries) { return carries != Carries::raw; }

std::string text_of(const ListedPhase& phase) {
  std::string text = detail::concat(name_of(phase.scope), " ", name_of(phase.routine));
  if (phase.carries != Carries::raw) text += detail::concat(" ", name_of(phase.carries));
  return text;
}

template <typename Enum, std::size_t N>
Enum value_of(std::string_view word, const std::array<std::string_view, N>& names, std::string_view what) {
  const auto* const found = std::ranges::find(names, word);
  if (found != names.end()) return static_cast<Enum>(found - names.begin());
  std::string known;
  for (const std::string_view name : names) known += detail::concat(known.empty() ? "" : ", ", name);
  throw InvalidArgument(detail::concat("the phases of a topology: '", word, "' is no ", what, "; known: ", known));
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

ListedPhase phase_of(std::string_view text) {
  const auto words = words_of(text);
  if (words.size() < 2 || words.size() > 3) {
    throw InvalidArgument(detail::concat("the phases of a topology: '", text,
                                         "' is no phase; write its scope, its routine, and what it carries, as in "
                                         "\"inter allgather coded\""));
  }
  ListedPhase phase{value_of<Scope>(words[0], kScopeName, "scope"),
                    value_of<Routine>(words[1], kRoutineName, "routine")};
  if (words.size() == 3) phase.carries = value_of<Carries>(words[2], kCarriesName, "load of a phase");
  return phase;
}

/// Walks down the tree with a list.
class Checker {
 public:
  explicit Checker(const PhaseList& list) : list_(list) {}

  std::optional<std::string> run() const {
    if (list_.empty()) return "there is no phase";
    for (std::size_t i = 1; i < list_.size(); ++i) {
      if ((list_[i].scope == Scope::flat) != (list_[0].scope == Scope::flat))
        return about(i, "phases without levels do not mix with phases inside and between hosts");
    }
    if (list_[0].scope == Scope::flat) return exchange(0, list_.size());
    if (list_[0].scope != Scope::intra) return about(0, "the ranks of a host come first");
    if (const auto wrong = first_step(0)) return wrong;
    const std::size_t last = list_.size() - 1;
    if (last == 0 || list_[last].scope != Scope::intra)
      return about(last, "the last phase takes the result to the ranks of each host");
    if (last == 1) return about(1, "nothing goes between hosts before it");
    for (std::size_t i = 1; i < last; ++i) {
      if (list_[i].scope != Scope::inter) return about(i, "between the first and the last phase all go between hosts");
    }
    if (const auto wrong = exchange(1, last)) return wrong;
    return second_step(last, 0);
  }

 private:
  std::string about(std::size_t i, std::string_view rule) const {
    return detail::concat("phase ", i, " (", text_of(list_[i]), "): ", rule);
  }

  /// All phases of one scope that go between all its members, by which each ends with the result.
  std::optional<std::string> exchange(std::size_t begin, std::size_t end) const {
    const ListedPhase& first = list_[begin];
    if (end - begin > 2) return about(begin + 2, "a scope has one routine, or a pair of them");
    if (end - begin == 2) {
      if (const auto wrong = first_step(begin)) return wrong;
      return second_step(begin + 1, begin);
    }
    if (first.routine == Routine::allreduce) {
      if (has_payloads(first.carries)) return about(begin, "payloads are not summed on the way, so allreduce is raw");
      return std::nullopt;
    }
    if (first.routine != Routine::allgather) return about(begin, "it is the first step of a pair without the second");
    if (!has_payloads(first.carries)) return about(begin, "alone it takes payloads to all, so it is not raw");
    return comes(begin);
  }

  std::optional<std::string> first_step(std::size_t i) const {
    const Pair* const pair = pair_of(list_[i].routine);
    if (pair == nullptr) return about(i, "no pair of routines begins with it");
    if (pair->of_payloads && !has_payloads(list_[i].carries)) return about(i, "it gathers payloads, so it is not raw");
    if (!pair->of_payloads && has_payloads(list_[i].carries)) return about(i, "it adds elements up, so it is raw");
    return comes(i);
  }

  std::optional<std::string> second_step(std::size_t i, std::size_t first) const {
    const Pair& pair = *pair_of(list_[first].routine);
    if (list_[i].routine != pair.second) {
      return about(i, detail::concat("after ", name_of(pair.first), " comes ", name_of(pair.second)));
    }
    return comes(i);
  }

  /// What is passed on came with the phase before.
  std::optional<std::string> comes(std::size_t i) const {
    if (list_[i].carries != Carries::passed) return std::nullopt;
    if (i == 0) return about(0, "there is no phase before whose payloads it could pass on");
    if (!has_payloads(list_[i - 1].carries)) return about(i, "the phase before has no payloads that it could pass on");
    return std::nullopt;
  }

  const PhaseList& list_;
};

/// Appends what may follow to a list, one phase after the other.
class Enumeration {
 public:
  std::vector<PhaseList> run() {
    exchange(Scope::flat, [this] { lists_.push_back(list_); });
    for (const Pair& pair : kPairs) {
      with({Scope::intra, pair.first, pair.of_payloads ? Carries::coded : Carries::raw}, [&] {
        exchange(Scope::inter, [&] { second_step(Scope::intra, pair, [this] { lists_.push_back(list_); }); });
      });
    }
    return std::move(lists_);
  }

 private:
  template <typename Then>
  void with(const ListedPhase& phase, const Then& then) {
    list_.push_back(phase);
    then();
    list_.pop_back();
  }

  /// A phase with payloads: of its own, or those that came.
  template <typename Then>
  void with_payloads(Scope scope, Routine routine, const Then& then) {
    const bool came = !list_.empty() && has_payloads(list_.back().carries);
    with({scope, routine, Carries::coded}, then);
    if (came) with({scope, routine, Carries::passed}, then);
  }

  template <typename Then>
  void second_step(Scope scope, const Pair& pair, const Then& then) {
    with({scope, pair.second, Carries::raw}, then);
    with_payloads(scope, pair.second, then);
  }

  template <typename Then>
  void exchange(Scope scope, const Then& then) {
    with({scope, Routine::allreduce, Carries::raw}, then);
    with_payloads(scope, Routine::allgather, then);
    for (const Pair& pair : kPairs) {
      const auto second = [&] { second_step(scope, pair, then); };
      if (pair.of_payloads) {
        with_payloads(scope, pair.first, second);
      } else {
        with({scope, pair.first, Carries::raw}, second);
      }
    }
  }

  PhaseList list_;
  std::vector<PhaseList> lists_;
};

}  // namespace

std::optional<PhaseList> parse_phases(std::string_view text) {
  if (!text.starts_with(kOpen) || !text.ends_with(')')) return std::nullopt;
  text = text.substr(kOpen.size(), text.size() - kOpen.size() - 1);
  PhaseList list;
  for (;;) {
    const std::size_t end = text.find(',');
    list.push_back(phase_of(text.substr(0, end)));
    if (end == std::string_view::npos) return list;
    text.remove_prefix(end + 1);
  }
}

std::string text_of(const PhaseList& list) {
  std::string text(kOpen);
  for (std::size_t i = 0; i < list.size(); ++i) text += detail::concat(i > 0 ? ", " : "", text_of(list[i]));
  return text + ')';
}

std::optional<std::string> why_not_valid(const PhaseList& list) { return Checker(list).run(); }

/// What one rank has added up and encoded is passed on by all others; only that may be.
std::optional<std::string> why_not_executed(const PhaseList& list) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (list[i].carries != Carries::passed) continue;
    const bool second = i >= 2 && list[i - 1].scope == list[i - 2].scope;  // of a pair: a sum was encoded for it
    if (second && list[i - 1].carries == Carries::coded && i + 1 == list.size()) continue;
    return detail::concat("phase ", i, " (", text_of(list[i]),
                          ") passes payloads on that nobody has added up, which is planned and not executed");
  }
  return std::nullopt;
}

std::vector<PhaseList> every_phase_list() { return Enumeration().run(); }

}  // namespace casync
