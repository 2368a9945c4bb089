// What codecs keep of tensors: read, set and forgotten.
#include "session/session_impl.hpp"

namespace casync {

std::vector<std::string> Session::residual_names() {
  std::vector<std::string> names;
  impl_->inspect([&](Driver& driver, const Engine&) {
    for (const auto& [name, kept] : driver.memory().store().all()) {
      if (kept.has_residual()) names.push_back(name);
    }
  });
  return names;
}

FloatArray Session::residual(const std::string& name) {
  FloatArray values;
  impl_->inspect([&](Driver& driver, const Engine&) {
    if (const GradientState* const kept = driver.memory().store().find(name)) values = kept->residual_copy();
  });
  return values;
}

void Session::set_residual(const std::string& name, std::span<const float> values) {
  impl_->change([&](Driver& driver) {
    impl_->check_kept_is_free(name);
    driver.memory().store()[name].set_residual(values);
  });
}

std::vector<std::string> Session::state_names() {
  std::vector<std::string> names;
  impl_->inspect([&](Driver& driver, const Engine&) {
    for (const auto& [name, kept] : driver.memory().store().all()) {
      if (kept.state().steps > 0) names.push_back(name);
    }
  });
  return names;
}

CodecState Session::state(const std::string& name) {
  CodecState state;
  impl_->inspect([&](Driver& driver, const Engine&) {
    if (const GradientState* const kept = driver.memory().store().find(name)) state = kept->state_copy();
  });
  return state;
}

void Session::set_state(const std::string& name, CodecState state) {
  impl_->change([&](Driver& driver) {
    impl_->check_kept_is_free(name);
    for (std::size_t i = 0; i < state.arrays.size(); ++i)
      state.arrays[i].elements = static_cast<std::int64_t>(state.values[i].size());
    const Signature* last = nullptr;
    impl_->definitions.for_each([&](std::uint32_t /*number*/, const Definitions::One& one) {
      const auto& [tensor, signature, hash] = *one.definition;
      if (tensor == name && reduces(signature.kind)) last = &signature;
    });
    if (last != nullptr) {
      impl_->about(name, last->kind, [&] { check_state(name, state, last->shape); });
    } else {
      impl_->set_states[name] = {state.codec, state.agreed, 0, state.arrays, {}};
    }
    driver.memory().store()[name].set_state(std::move(state));
  });
}

void Session::forget(const std::string& name) {
  impl_->change([&](Driver& driver) {
    impl_->check_kept_is_free(name);
    impl_->set_states.erase(name);
    driver.memory().store().erase(name);
  });
}

}  // namespace casync
