#include "session/definitions.hpp"

#include <utility>

namespace casync {

std::optional<std::uint32_t> Definitions::find(const std::string& key) {
  const auto at = by_key_.find(key);
  if (at == by_key_.end()) return std::nullopt;
  use(at->second);
  return at->second;
}

void Definitions::add(One one) {
  one.place = kept_.add(next(), one.definition->name_hash);
  by_key_.emplace(one.key, next());
  ++of_name_[one.name];
  all_.add(std::move(one));
}

Definitions::One* Definitions::use(std::uint32_t number) {
  One* const one = all_.find(number);
  if (one != nullptr) kept_.use(one->place);
  return one;
}

std::optional<Definitions::Forgotten> Definitions::forget() {
  const auto number = kept_.evict([this](std::uint32_t candidate) {
    const One& one = all_[candidate];
    return one.operations == 0 && (!one.is_new || next() - candidate > kPatience);
  });
  if (!number) return std::nullopt;
  One& one = all_[*number];
  by_key_.erase(one.key);
  const auto of_name = of_name_.find(one.name);
  const bool was_last = --of_name->second == 0;
  if (was_last) of_name_.erase(of_name);
  Forgotten forgotten{*number, one.name, was_last, std::move(one.definition)};
  all_.erase(*number);
  return forgotten;
}

}  // namespace casync
