#include "planner/tune/auto_tuner.hpp"

#include <algorithm>
#include <tuple>

#include "casync/error.hpp"
#include "planner/search/request.hpp"
#include "planner/text.hpp"

namespace casync {

AutoTuner::AutoTuner(const ModelRequest& request, double rest_s)
    : world_(request.world), costs_(request.costs), options_(request.options), rest_s_(rest_s) {
  ModelPlan model = plan_model(request);
  std::ranges::stable_sort(model.uniform, {}, [](const auto& uniform) { return loss_of(uniform.first); });
  using Taken = std::vector<std::tuple<std::string, std::string, std::uint32_t>>;  // per gradient
  const auto taken_by = [&](Way& way) {
    Taken taken;
    for (const auto& [name, signature, step] : request.open) {
      const GradientPlan& plan = decide(way, name, signature, step).plan;
      taken.emplace_back(plan.codec, plan.topology, plan.partitions);
    }
    return taken;
  };
  const auto by_name = [&](const std::vector<double>& gradient_s) {
    ByGradient named;
    for (std::size_t g = 0; g < request.open.size(); ++g) named.emplace(request.open[g].name, gradient_s[g]);
    return named;
  };
  const auto none = std::ranges::find(model.uniform, "none", &std::pair<std::string, PredictedStep>::first);
  CASYNC_CHECK(none != model.uniform.end(), "no gradient may go uncompressed");
  none_s_ = none->second.step_s;
  bound_s_ = model.bound_s;
  uncompressed_s_ = by_name(none->second.gradient_s);
  Way planned{"", request.lasting, model.step_s, by_name(model.gradient_s)};
  for (std::size_t g = 0; g < request.open.size(); ++g)
    planned.of_model.emplace(request.open[g].name, std::move(model.ways[g]));
  const Taken of_plan = taken_by(planned);
  std::vector<Taken> taken;  // per way
  std::vector<std::string> names;
  std::optional<std::size_t> first;
  for (const auto& [spec, predicted] : model.uniform) {
    Way way{spec, request.lasting, predicted.step_s, by_name(predicted.gradient_s)};
    Taken of_way = taken_by(way);
    if (std::ranges::find(taken, of_way) != taken.end()) continue;
    if (of_way == of_plan) first = ways_.size();
    taken.push_back(std::move(of_way));
    names.push_back(spec);
    ways_.push_back(std::move(way));
  }
  if (!first) {
    first = ways_.size();
    names.emplace_back("plan");
    ways_.push_back(std::move(planned));
  }
  referee_.emplace(std::move(names), *first);
}

const Decision& AutoTuner::decide(Way& way, const std::string& name, const Signature& signature, std::uint32_t step) {
  const auto known = way.decisions.find(name);
  if (known != way.decisions.end() && !is_over(known->second.plan, step)) return known->second;
  Decision decision = decide_anew(way, name, signature, step);
  const auto predicted = way.gradient_s.find(name);
  if (predicted != way.gradient_s.end()) {
    decision.plan.predicted_s = predicted->second;
    decision.plan.uncompressed_s = uncompressed_s_.at(name);
  }
  way.load = decision.load;
  return way.decisions.insert_or_assign(name, std::move(decision)).first->second;
}

Decision AutoTuner::decide_anew(const Way& way, const std::string& name, const Signature& signature,
                                std::uint32_t step) const {
  PlanRequest request{name, signature, world_, costs_, options_, way.load, step};
  if (way.codec.empty()) {
    const auto of_model = way.of_model.find(name);
    if (of_model != way.of_model.end() && !way.decisions.contains(name)) request.way = &of_model->second;
    return plan_gradient(request);
  }
  const auto specs = candidates(request);
  if (std::ranges::find(specs, way.codec) == specs.end()) return plan_gradient(request);
  const bool always = parse_compression(signature.compression).always;
  Signature asked = signature;
  asked.compression = always ? detail::concat("always(", way.codec, ")") : way.codec;
  const CostTable priors;  // as for a codec that the program names: the way is to be no worse than that
  try {
    return plan_gradient({name, asked, world_, priors, options_, way.load, step});
  } catch (const InvalidArgument&) {
    // The topology that is named for the gradient does not carry that codec.
    return plan_gradient(request);
  }
}

Decision AutoTuner::plan(const std::string& name, const Signature& signature, std::uint32_t step) {
  Decision decision = decide(ways_[referee_->current()], name, signature, step);
  std::string& reason = decision.plan.reason;
  reason += "; among the others " + in_ms(decision.plan.predicted_s) + "; " + prediction();
  if (!compares()) return decision;
  decision.plan.on_trial = !over();
  reason = over() ? detail::concat("compared, ", verdict(), "; ", reason) : "on trial, " + reason;
  return decision;
}

std::string AutoTuner::prediction() const {
  const Way& way = ways_[referee_->current()];
  const std::string step = "the step " + in_ms(way.gradients_s + rest_s_);
  if (way.codec == "none") return step;
  const std::string beside = detail::concat(step, ", ", in_ms(none_s_ + rest_s_), " with none");
  if (!way.codec.empty()) return beside;
  return detail::concat(beside, ", no plan under ", in_ms(bound_s_ + rest_s_));
}

}  // namespace casync
