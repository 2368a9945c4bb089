// The plans of a session: asked for, and kept.
#include <algorithm>
#include <map>
#include <tuple>

#include "session/session_impl.hpp"

namespace casync {

std::unique_ptr<GradientPlan> Session::plan(std::uint32_t registration) {
  std::unique_ptr<GradientPlan> plan;
  impl_->inspect([&](Driver&, const Engine& engine) {
    if (const GradientPlan* known = engine.plan_of(registration)) plan = std::make_unique<GradientPlan>(*known);
  });
  return plan;
}

std::vector<std::pair<std::string, GradientPlan>> Session::plans() {
  std::vector<std::tuple<std::uint64_t, std::uint32_t, std::string>> reduced;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->definitions.for_each([&](std::uint32_t number, const Definitions::One& one) {
      const auto& [name, signature, hash] = *one.definition;
      if (signature.kind == OpKind::allreduce) reduced.emplace_back(one.begun, number, name);
    });
  }
  std::ranges::sort(reduced);  // of several plans of one name the one that was used last comes last
  std::vector<std::pair<std::string, GradientPlan>> plans;
  impl_->inspect([&](Driver&, const Engine& engine) {
    for (const auto& [begun, number, name] : reduced) {
      if (const GradientPlan* plan = engine.plan_of(number)) plans.emplace_back(name, *plan);
    }
  });
  return plans;
}

void Session::fix_plans(const std::vector<std::pair<std::string, GradientPlan>>& plans) {
  const std::map<std::string, GradientPlan, std::less<>> by_name(plans.begin(), plans.end());
  {
    const std::lock_guard lock(impl_->mutex);
    MeasuredPlanning::Options planning = impl_->planning;
    for (const auto& [name, plan] : by_name) planning.fixed.insert_or_assign(name, plan);
    impl_->definitions.for_each([&](std::uint32_t /*number*/, const Definitions::One& one) {
      // Throws before anything is changed.
      const auto& [tensor, signature, hash] = *one.definition;
      impl_->about(tensor, signature.kind, [&] { MeasuredPlanning::check(planning, tensor, signature); });
    });
    impl_->planning = std::move(planning);
  }
  impl_->inspect([&](Driver& driver, const Engine&) {
    impl_->planner->fix(by_name);
    driver.plans_changed();
  });
}

}  // namespace casync
