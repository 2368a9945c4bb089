#include "executor/memory/state_store.hpp"

namespace casync {

const GradientState* StateStore::find(const std::string& name) const {
  const auto at = kept_.find(name);
  return at == kept_.end() ? nullptr : &at->second;
}

GradientState* StateStore::find(const std::string& name) {
  const auto at = kept_.find(name);
  return at == kept_.end() ? nullptr : &at->second;
}

std::uint32_t StateStore::steps(const std::string& name) const {
  const GradientState* const kept = find(name);
  return kept == nullptr ? 0 : kept->state().steps;
}

Settled StateStore::settled(const Definition& definition) const {
  const GradientState* const kept = find(definition.name);
  const bool settled = kept != nullptr && kept->agreed(definition.signature.shape);
  return settled ? settled_by(kept->state().codec) : 0;
}

std::size_t StateStore::bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, kept] : kept_) bytes += kept.bytes();
  return bytes;
}

}  // namespace casync
