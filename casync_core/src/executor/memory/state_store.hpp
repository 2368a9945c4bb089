#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "engine/control.hpp"
#include "executor/memory/gradient_state.hpp"
#include "executor/operation.hpp"

namespace casync {

/// What is kept of gradients, by tensor name: it outlives their runs. An entry stays where it is until it is erased.
/// Used by the progress thread alone, but for residuals and state arrays, which workers write, each in its own
/// partition.
class StateStore {
 public:
  /// Null: nothing is kept.
  GradientState* find(const std::string& name);
  const GradientState* find(const std::string& name) const;
  /// An empty one where there was none.
  GradientState& operator[](const std::string& name) { return kept_[name]; }
  void erase(const std::string& name) { kept_.erase(name); }
  const std::unordered_map<std::string, GradientState>& all() const { return kept_; }

  /// How many steps of gradient `name` are counted.
  std::uint32_t steps(const std::string& name) const;
  /// Whose values are kept for what `definition` names, as control.hpp says it.
  Settled settled(const Definition& definition) const;
  std::size_t bytes() const;  ///< of residuals and states

 private:
  std::unordered_map<std::string, GradientState> kept_;
};

}  // namespace casync
