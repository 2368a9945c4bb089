#include "planner/contest.hpp"

#include <algorithm>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "planner/request.hpp"

namespace casync {
namespace {

/// How much a codec changes training, as far as one can say without training: nothing, a rounding, or more.
int loss_of(const std::string& spec) {
  const CodecInfo info = make_codec(spec)->info();
  return info.identity ? 0 : info.cast ? 1 : 2;
}

}  // namespace

Contest::Contest(const World& world, const CostTable& costs, PlannerOptions options, OwnerLoad lasting,
                 const std::vector<OpenGradient>& gradients)
    : world_(world), costs_(costs), options_(std::move(options)) {
  std::vector<std::string> specs;
  for (const OpenGradient& gradient : gradients) {
    for (const std::string& spec :
         candidates({gradient.name, gradient.signature, world_, costs_, options_, lasting, gradient.step})) {
      if (std::ranges::find(specs, spec) == specs.end()) specs.push_back(spec);
    }
  }
  std::ranges::stable_sort(specs, {}, loss_of);
  Way planned{"", lasting};
  std::vector<std::vector<std::string>> chosen;  // per way, the codec of each gradient
  const auto codecs_of = [&](Way& way) {
    std::vector<std::string> codecs;
    for (const auto& [name, signature, step] : gradients)
      codecs.push_back(decide(way, name, signature, step).plan.codec);
    return codecs;
  };
  const std::vector<std::string> of_plan = codecs_of(planned);
  std::vector<std::string> names;
  std::optional<std::size_t> first;
  for (const std::string& spec : specs) {
    Way way{spec, lasting};
    std::vector<std::string> codecs = codecs_of(way);
    if (std::ranges::find(chosen, codecs) != chosen.end()) continue;
    if (codecs == of_plan) first = ways_.size();
    chosen.push_back(std::move(codecs));
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

const Decision& Contest::decide(Way& way, const std::string& name, const Signature& signature, std::uint32_t step) {
  const auto known = way.decisions.find(name);
  if (known != way.decisions.end() && !is_over(known->second.plan, step)) return known->second;
  Signature asked = signature;
  const PlanRequest open{name, signature, world_, costs_, options_, way.load, step};
  const bool always = parse_always(signature.compression).has_value();
  if (const auto specs = candidates(open); std::ranges::find(specs, way.codec) != specs.end())
    asked.compression = always ? detail::concat("always(", way.codec, ")") : way.codec;
  std::optional<Decision> decision;
  try {
    decision = plan_gradient({name, asked, world_, costs_, options_, way.load, step});
  } catch (const InvalidArgument&) {
    // The topology that is named for the gradient does not carry that codec.
    decision = plan_gradient(open);
  }
  way.load = decision->load;
  return way.decisions.insert_or_assign(name, std::move(*decision)).first->second;
}

Decision Contest::plan(const std::string& name, const Signature& signature, std::uint32_t step) {
  Decision decision = decide(ways_[referee_->current()], name, signature, step);
  if (!compares()) return decision;
  decision.plan.on_trial = !over();
  const std::string& reason = decision.plan.reason;
  decision.plan.reason = over() ? detail::concat("compared, ", verdict(), "; ", reason) : "on trial, " + reason;
  return decision;
}

}  // namespace casync
