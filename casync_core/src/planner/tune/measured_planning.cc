#include "planner/tune/measured_planning.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "common/hash.hpp"
#include "planner/search/request.hpp"
#include "planner/text.hpp"

namespace casync {
namespace {

bool is_automatic(const Signature& signature) {
  return signature.kind == OpKind::allreduce && parse_auto(parse_compression(signature.compression).choice).has_value();
}

/// As if one member owned least, and those after it more and more: who owns first depends on the name alone.
OwnerLoad load_by_name(std::string_view name, std::size_t members) {
  OwnerLoad load;
  for (std::size_t m = 0; m < members; ++m) {
    load.bytes.push_back(static_cast<double>((m + hash_text(name) % members) % members));
  }
  return load;
}

/// "8.1 ns/B, 90 us a hop and 4 us a message between hosts, ..., 0.6 ns/B between hosts and 20 us a gradient of a
/// processor, onebit 0.2 + 0.1 ns/B to encode and decode".
std::string describe(const CostTable& costs) {
  const auto in_ns = [](double s_per_byte) { return std::round(s_per_byte * 1e12) / 1e3; };
  const auto in_us = [](double seconds) { return std::round(seconds * 1e8) / 1e2; };
  const auto link = [&](const LinkCost& of) {
    return detail::concat(in_ns(of.seconds_per_byte), " ns/B, ", in_us(of.latency_s), " us a hop and ",
                          in_us(of.message_s), " us a message");
  };
  std::string text = detail::concat(link(costs.inter), " between hosts, ", link(costs.intra), " on a host");
  text += detail::concat(", ", in_ns(costs.inter.processor_s_per_byte), " ns/B between hosts and ",
                         in_us(costs.operation_s), " us a gradient of a processor");
  const auto add = [&](const auto& codecs, std::string_view where) {
    for (const auto& [codec, cost] : codecs) {
      text += detail::concat(", ", codec, " ", in_ns(cost.encode_s_per_byte), " + ", in_ns(cost.decode_s_per_byte),
                             " ns/B to encode and decode", where);
    }
  };
  add(costs.codecs, "");
  add(costs.device_codecs, " on the device");
  return text;
}

/// Whether both name one codec. A plan may name a file of the user's own that has changed since: that is no codec now.
bool same_codec(std::string_view asked, std::string_view planned) {
  const std::string spec = make_codec(asked)->info().spec;
  try {
    return make_codec(planned)->info().spec == spec;
  } catch (const InvalidArgument&) {
    return false;
  }
}

LogRecord record_of(const std::string& name, const GradientPlan& plan, std::string text) {
  return {LogLevel::info,
          std::move(text),
          {{"event", "plan"},
           {"tensor", name},
           {"codec", plan.codec},
           {"topology", plan.topology},
           {"partitions", std::int64_t{plan.partitions}},
           {"first_owner", std::int64_t{plan.first_owner}},
           {"epoch", std::int64_t{plan.epoch}}}};
}

LogRecord record_of(const FoundInterval& found) {
  const std::string ratio = found.backward_s <= 0 ? "no backward pass was seen that could hide it"
                                                  : detail::concat("backward ", in_ms(found.backward_s));
  const std::string longer =
      found.wanted > found.steps
          ? detail::concat(". ", found.wanted, " would hide it, but an interval over ", kMostFound,
                           " multiplies the learning rate by as much: name it, if your training bears that")
          : "";
  return {LogLevel::info,
          detail::concat("covap: communication ", in_ms(found.communication_s), " a step, ", in_ms(found.waiting_s),
                         " of it may wait; ", ratio, ": interval ", found.steps, longer),
          {{"event", "interval"},
           {"interval", std::int64_t{found.steps}},
           {"communication_s", found.communication_s},
           {"waiting_s", found.waiting_s},
           {"backward_s", found.backward_s}}};
}

const GradientPlan* find_fixed(const MeasuredPlanning::Options& options, const std::string& name,
                               const Signature& signature) {
  const auto at = options.fixed.find(name);
  if (at == options.fixed.end() || signature.kind != OpKind::allreduce) return nullptr;
  const auto [always, interval, coefficient, choice] = parse_compression(signature.compression);
  const bool named = !choice.empty() && !is_automatic(signature);
  const bool same_interval = interval == 0 || interval == at->second.period;
  const bool same_coefficient = at->second.period == 1 || coefficient == at->second.coefficient;
  if (named && !(same_interval && same_coefficient && same_codec(choice, at->second.codec))) return nullptr;
  return &at->second;
}

/// A topology has no order of precedence as a codec has: who names one in the script means it, and so does who gives
/// the plan. Where nothing is sent, a plan's topology means nothing.
void check_topology(const MeasuredPlanning::Options& options, const GradientPlan& fixed, const Signature& signature) {
  if (options.host_of.size() <= 1 || signature.shape.numel() == 0) return;
  if (signature.topology.empty() || signature.topology == "auto") return;
  if (signature.topology == fixed.topology) return;
  throw InvalidArgument(detail::concat("the plan has topology ", make_route(fixed.topology)->name(),
                                       ", and the program names topology ", make_route(signature.topology)->name(),
                                       " for it. To follow the plan, leave the topology out in the program, or name it "
                                       "\"auto\"; to follow the program, take the plan out"));
}

void check_period(const GradientPlan& fixed, const Signature& signature) {
  if (fixed.offset >= fixed.period)
    throw InvalidArgument(detail::concat("it synchronises step ", fixed.offset, " of ", fixed.period));
  if (const auto why_not = why_not_held(signature); fixed.period > 1 && why_not)
    throw InvalidArgument(detail::concat("it synchronises in one step of ", fixed.period, ", and ", *why_not));
}

/// Whether its interval is left to what is measured.
bool has_open_interval(const Signature& signature) { return parse_compression(signature.compression).interval == 0; }

/// The codecs that compete with `none` for an automatic gradient, now or in a later step: canonical specs.
std::vector<std::string> competitors(const MeasuredPlanning::Options& options, const std::string& name,
                                     const Signature& signature) {
  const CostTable priors;
  const OwnerLoad none;
  const World world(options.host_of);
  std::vector<std::string> specs = candidates({name, signature, world, priors, options.planner, none});
  std::erase_if(specs, [&](const std::string& spec) {
    return spec == "none" || !make_codec(spec)->applies(signature.shape, Codec::kLateStep);
  });
  return specs;
}

}  // namespace

/// Plans from what was measured.
class MeasuredPlanning::ModelWork final : public PlanWork {
 public:
  ModelWork(const MeasuredPlanning& of, MeasuredCosts told)
      : world(of.world_),
        measured(std::move(told)),
        costs(measured_over(measured, CostTable())),
        options_(of.options_.planner),
        lasting_(of.lasting_),
        open_(of.open_),
        settled_(of.settled_) {
    options_.epoch = of.epoch_ + 1;
    // Codecs that are tried, and memory that is new, make the first ones longer.
    if (const auto& rests = of.rests_.values(); !rests.empty()) rest_s_ = std::ranges::min(rests);
  }
  void run() override {
    const ModelRequest request{world, costs, options_, lasting_, open_, settled_};
    const auto waits = [&](const SettledGradient& gradient) {
      const Compression asked = parse_compression(gradient.signature.compression);
      return asked.interval == 0 && (asked.always || gradient.signature.shape.numel() >= options_.min_numel);
    };
    if (std::ranges::any_of(settled_, waits)) interval = find_interval(request, waits);
    if (!open_.empty()) contest.emplace(ModelRequest{world, costs, options_, lasting_, open_, settled_}, rest_s_);
  }

  World world;
  MeasuredCosts measured;
  CostTable costs;
  std::optional<AutoTuner> contest;
  std::optional<FoundInterval> interval;

 private:
  PlannerOptions options_;
  OwnerLoad lasting_;
  std::vector<OpenGradient> open_;
  std::vector<SettledGradient> settled_;
  double rest_s_ = 0;
};

/// Plans one gradient, so that the world knows the routes that matter for it.
class MeasuredPlanning::CountWork final : public PlanWork {
 public:
  CountWork(const MeasuredPlanning& of, std::string name, Signature signature, std::uint32_t step)
      : world(of.world_),
        costs_(of.costs_),
        options_(of.options_.planner),
        name_(std::move(name)),
        signature_(std::move(signature)),
        step_(step) {}
  void run() override { plan_gradient({name_, signature_, world, costs_, options_, {}, step_}); }

  World world;

 private:
  CostTable costs_;
  PlannerOptions options_;
  std::string name_;
  Signature signature_;
  std::uint32_t step_;
};

MeasuredPlanning::MeasuredPlanning(Options options, Log log)
    : options_(std::move(options)), world_(options_.host_of), log_(std::move(log)), offsets_(options_.host_of) {}

const GradientPlan* MeasuredPlanning::fixed_for(const std::string& name, const Signature& signature) const {
  return find_fixed(options_, name, signature);
}

void MeasuredPlanning::check(const Options& options, const std::string& name, const Signature& signature) {
  if (!reduces(signature.kind)) return;
  const CostTable priors;
  const World world(options.host_of);
  check_gradient({name, signature, world, priors, options.planner, {}});
  if (options.deterministic && has_open_interval(signature)) {
    throw InvalidArgument(detail::concat("tensor ", name, ": ", signature.compression,
                                         " measures its interval, which differs from run to run, and the mode is "
                                         "deterministic; name one, as in covap(fp16, interval=4)"));
  }
  try {
    const GradientPlan* fixed = find_fixed(options, name, signature);
    if (fixed == nullptr) return;
    if (fixed->partitions == 0) throw InvalidArgument("it has no partitions");
    if (fixed->partitions > kPartitionLimit) {
      throw InvalidArgument(
          detail::concat("it has ", fixed->partitions, " partitions, and there can be ", kPartitionLimit));
    }
    if (fixed->partitions > 1 && signature.op == ReduceOp::adasum) {
      throw InvalidArgument(detail::concat("it has ", fixed->partitions, " partitions, and op Adasum takes 1"));
    }
    if (!fixed->tensor.empty() && fixed->tensor != tensor_of(signature)) {
      throw InvalidArgument(
          detail::concat("it was made for ", fixed->tensor, ", and the tensor is ", tensor_of(signature)));
    }
    check_period(*fixed, signature);
    check_topology(options, *fixed, signature);
    Signature as_fixed = signature;
    as_fixed.compression = fixed->codec;
    as_fixed.topology = fixed->topology;
    check_gradient({name, as_fixed, world, priors, options.planner, {}});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("the plan given for tensor ", name, " does not fit it: ", error.what()),
                          {.kind = ErrorKind::unfit_plan, .tensor = name, .op = signature.kind});
  }
}

bool MeasuredPlanning::is_planned_again(const Signature& signature) const {
  if (options_.deterministic) return false;
  return is_automatic(signature) || has_open_interval(signature) || (options_.re_plan && reduces(signature.kind));
}

/// Whether the planner chooses its codec.
bool MeasuredPlanning::is_open(const std::string& name, const Signature& signature) const {
  if (options_.deterministic) return false;
  const bool left_out =
      signature.shape.numel() < options_.planner.min_numel && !parse_compression(signature.compression).always;
  return is_automatic(signature) && !left_out && options_.host_of.size() > 1 && fixed_for(name, signature) == nullptr;
}

std::vector<std::string> MeasuredPlanning::define(const std::string& name, const Signature& signature) {
  interval_is_open_ |= !options_.deterministic && has_open_interval(signature);
  if (tells_at_ > 0 || !is_open(name, signature)) return {};
  std::vector<std::string> wanted;
  for (std::string& codec : competitors(options_, name, signature)) {
    if (timed_.insert(codec).second && !measurements_.has(codec)) wanted.push_back(std::move(codec));
  }
  return wanted;
}

void MeasuredPlanning::forget(const std::string& name, const Signature& signature) {
  const auto is_it = [&](const auto& known) { return known.name == name && known.signature == signature; };
  std::erase_if(open_, is_it);
  std::erase_if(settled_, is_it);
  counted_.erase(name);
  std::erase_if(on_trial_, [&](const auto& of) { return of.first == name; });
  measurements_.forget(name);
  offsets_.forget(name);
}

std::vector<std::string> MeasuredPlanning::to_try(const std::string& name, const Signature& signature,
                                                  std::uint64_t submits) {
  if (submits != kTriedRun || !is_open(name, signature)) return {};
  std::vector<std::string> wanted;
  for (std::string& codec : competitors(options_, name, signature)) {
    if (make_codec(codec)->info().fixed_size) {
      if (tried_[codec]++ < kTriedGradients) wanted.push_back(std::move(codec));
    } else if (!measurements_.has_payload(name, codec)) {
      on_trial_.emplace(name, codec);
      wanted.push_back(std::move(codec));
    }
  }
  return wanted;
}

bool MeasuredPlanning::weighs(const Options& options, const std::string& name, const Signature& signature,
                              std::string_view codec) {
  if (options.deterministic || !is_automatic(signature) || signature.memory != MemoryKind::device ||
      options.host_of.size() <= 1)
    return false;
  const std::vector<std::string> others = competitors(options, name, signature);
  return std::ranges::find(others, make_codec(codec)->info().spec) != others.end();
}

std::optional<std::vector<std::byte>> MeasuredPlanning::costs(const Signature& signature, std::uint64_t submits) {
  const bool again = tells_at_ > 0 && options_.re_plan;
  if (tells_at_ > 0 && !again) return std::nullopt;
  if (submits <= options_.warm_up || submits < tells_at_ || !is_planned_again(signature)) return std::nullopt;
  const bool complete =
      std::ranges::all_of(timed_, [&](const std::string& codec) { return measurements_.has(codec); }) &&
      std::ranges::all_of(on_trial_, [&](const auto& of) { return measurements_.has_payload(of.first, of.second); });
  if (!complete) return std::nullopt;
  tells_at_ = submits + kTellsEvery;
  MeasuredCosts costs = measurements_.costs();
  costs.processors = options_.processors;
  std::vector<std::byte> bytes;
  put(bytes, costs);
  return bytes;
}

Decision MeasuredPlanning::decide(const std::string& name, const Signature& signature, std::uint32_t sequence) {
  if (contest_ && is_open(name, signature)) {
    Decision decision = contest_->plan(name, signature, sequence);
    note_measured(decision.plan, name, signature);
    return decision;
  }
  if (options_.deterministic) {
    const OwnerLoad load = load_by_name(name, options_.host_of.size());
    Decision decision = plan_gradient({name, signature, world_, costs_, options_.planner, load, sequence});
    decision.plan.offset = offset_by_name(name, decision.plan.period);
    return decision;
  }
  PlannerOptions planner = options_.planner;
  planner.epoch = is_planned_again(signature) ? epoch_ : 0;
  planner.interval = interval_;
  Decision decision = plan_gradient({name, signature, world_, costs_, planner, load_, sequence});
  if (decision.plan.period > kMostFound && !std::exchange(warned_, true)) {
    log_({LogLevel::warning,
          detail::concat("covap: an interval of ", decision.plan.period,
                         " applies so many gradients at once, as if the learning rate were so many times larger. "
                         "Compare the loss with that of a shorter one (docs/covap.md)"),
          {{"event", "interval"}, {"tensor", name}, {"interval", std::int64_t{decision.plan.period}}}});
  }
  if (decision.plan.period > 1) {
    offsets_.deal(name, decision.plan);
    decision.load = load_;  // what goes in one step of several is dealt to owners apart
  } else {
    offsets_.forget(name);
  }
  if (!is_planned_again(signature)) {
    lasting_.bytes.resize(decision.load.bytes.size());
    load_.bytes.resize(decision.load.bytes.size());
    for (std::size_t m = 0; m < lasting_.bytes.size(); ++m) {
      lasting_.bytes[m] += decision.load.bytes[m] - load_.bytes[m];
    }
  }
  load_ = decision.load;
  if (decision.plan.epoch >= kMeasuredEpoch) note_measured(decision.plan, name, signature);
  return decision;
}

void MeasuredPlanning::note_measured(GradientPlan& plan, const std::string& name, const Signature& signature) const {
  plan.reason = "measured, " + plan.reason;
  const auto gradient = measured_.gradients.find(name);
  if (gradient != measured_.gradients.end() && gradient->second.ready_s)
    plan.reason += detail::concat("; ready ", in_ms(*gradient->second.ready_s), " after the step's first gradient");
  plan.measured_inter_s_per_byte = measured_.inter.seconds_per_byte.value_or(0);
  plan.measured_intra_s_per_byte = measured_.intra.seconds_per_byte.value_or(0);
  if (!measured_.codecs.contains(plan.codec)) return;
  const CodecInfo codec = make_codec(plan.codec)->info();
  const bool sends_raw = world_.costs(plan.topology, codec, 1).sends_raw(codec);
  const auto [cost, copies_s] = compute_cost(costs_, plan.codec, signature.memory, sends_raw, 0);
  plan.measured_encode_s_per_byte = cost.encode_s_per_byte;
  plan.measured_decode_s_per_byte = cost.decode_s_per_byte;
}

GradientPlan MeasuredPlanning::plan(const std::string& name, const Signature& signature, std::uint32_t sequence) {
  is_root_ = true;
  GradientPlan plan = measures_links_with(name, signature) ? uncompressed(name, signature, sequence)
                                                           : first_plan(name, signature, sequence);
  if (epoch_ >= kMeasuredEpoch || !reduces(signature.kind)) return plan;
  std::erase_if(open_, [&](const OpenGradient& known) { return known.name == name; });
  std::erase_if(settled_, [&](const SettledGradient& known) { return known.name == name; });
  if (is_open(name, signature)) {
    open_.push_back({name, signature, sequence + 1});
  } else {
    settled_.push_back({name, signature, plan});
  }
  return plan;
}

/// The first run goes uncompressed: payloads may be so small that they say more of who sends them than of the link.
bool MeasuredPlanning::measures_links_with(const std::string& name, const Signature& signature) const {
  const auto is_it = [&](const OpenGradient& known) { return known.name == name; };
  return epoch_ < kMeasuredEpoch && is_open(name, signature) && std::ranges::none_of(open_, is_it);
}

GradientPlan MeasuredPlanning::uncompressed(const std::string& name, const Signature& signature,
                                            std::uint32_t sequence) {
  Signature asked = signature;
  asked.compression = "none";
  const Decision decision = plan_gradient({name, asked, world_, costs_, options_.planner, load_, sequence});
  GradientPlan plan = decision.plan;
  plan.until = sequence + 1;
  plan.reason = "to measure the links; " + plan.reason;
  tell(name, asked, decision);
  return plan;
}

GradientPlan MeasuredPlanning::first_plan(const std::string& name, const Signature& signature, std::uint32_t sequence) {
  Signature asked = signature;
  if (const GradientPlan* fixed = fixed_for(name, signature); fixed != nullptr && !is_over(*fixed, sequence)) {
    if (make_codec(fixed->codec)->applies(signature.shape, sequence)) {
      if (options_.explain) {
        log_(record_of(name, *fixed,
                       detail::concat(name, ": ", fixed->codec, ", K=", fixed->partitions, ", ",
                                      make_route(fixed->topology)->name(), ", as given")));
      }
      return *fixed;
    }
    asked.compression = fixed->codec;
  }
  if (!reduces(signature.kind)) {
    const double bytes = static_cast<double>(signature.shape.numel()) * static_cast<double>(size_of(signature.dtype));
    GradientPlan plan;
    plan.partitions = static_cast<std::uint32_t>(
        std::clamp(bytes / options_.planner.partition_bytes, 1.0, static_cast<double>(kPartitionLimit)));
    return plan;
  }
  const Decision decision = decide(name, asked, sequence);
  tell(name, asked, decision);
  return decision.plan;
}

void MeasuredPlanning::tell(const std::string& name, const Signature& signature, const Decision& decision) const {
  if (!options_.explain) return;
  LogRecord record = record_of(name, decision.plan, explain(name, signature, decision));
  record.fields["predicted_s"] = decision.plan.predicted_s;
  record.fields["uncompressed_s"] = decision.plan.uncompressed_s;
  record.fields["payload_bytes"] = static_cast<std::int64_t>(decision.plan.payload_bytes);
  log_(record);
}

void MeasuredPlanning::fix(const std::map<std::string, GradientPlan, std::less<>>& plans) {
  for (const auto& [name, plan] : plans) options_.fixed.insert_or_assign(name, plan);
}

void MeasuredPlanning::stepped(const Stepped& step) {
  if (step.measured_s > 0) rests_.add(step.rest_s);
  if (!is_root_ || (contest_ && !contest_->over())) return;
  const auto found = drift_.add(step.predicted_s, step.measured_s);
  if (!found || !options_.explain) return;
  const std::string then = options_.re_plan ? "Gradients are planned anew when all ranks have told what things cost now"
                                            : "The plans stay; CASYNC_REPLAN=1 has gradients planned anew";
  log_({LogLevel::info,
        detail::concat("the gradients of a step take ", in_ms(found->measured_s), ", and ", in_ms(found->predicted_s),
                       " are expected: for ", Drift::kSteps, " steps the two have differed by more than a factor of ",
                       Drift::kFactor, ". ", then),
        {{"event", "drift"}, {"measured_s", found->measured_s}, {"expected_s", found->predicted_s}}});
}

void MeasuredPlanning::costs_of(std::uint32_t member, std::span<const std::byte> costs) {
  told_by_[member] = get_measured_costs(costs);
  if (told_by_.size() < options_.host_of.size()) return;
  std::vector<MeasuredCosts> ranks;
  for (auto& [rank, told] : std::exchange(told_by_, {})) ranks.push_back(std::move(told));
  if (planning_ || (epoch_ >= kMeasuredEpoch && !(options_.re_plan && drift_.found()))) return;
  work_ = std::make_unique<ModelWork>(*this, reduce(ranks));
  planning_ = true;
}

std::unique_ptr<PlanWork> MeasuredPlanning::work() { return std::move(work_); }

std::unique_ptr<PlanWork> MeasuredPlanning::work_for(const std::string& name, const Signature& signature,
                                                     std::uint32_t step) {
  if (options_.host_of.size() <= kCountsAtOnce || !reduces(signature.kind) || fixed_for(name, signature) != nullptr)
    return nullptr;
  if (!counted_.insert(name).second) return nullptr;
  return std::make_unique<CountWork>(*this, name, signature, step);
}

bool MeasuredPlanning::worked(PlanWork& work) {
  if (const auto* const counted = dynamic_cast<CountWork*>(&work)) {
    world_.learn(counted->world);
    return false;
  }
  adopt(dynamic_cast<ModelWork&>(work));
  return true;
}

void MeasuredPlanning::adopt(ModelWork& work) {
  planning_ = false;
  world_.learn(work.world);
  measured_ = std::move(work.measured);
  costs_ = std::move(work.costs);
  ++epoch_;
  drift_.start_anew();
  load_ = lasting_;
  contest_.reset();
  if (work.contest) contest_.emplace(std::move(*work.contest));
  began_ = std::nullopt;
  if (work.interval) {
    interval_ = work.interval->steps;
    log_(record_of(*work.interval));
  }
  if (!options_.explain) return;
  log_({LogLevel::info,
        "measured: " + describe(costs_),
        {{"event", "costs"},
         {"inter_s_per_byte", costs_.inter.seconds_per_byte},
         {"inter_latency_s", costs_.inter.latency_s},
         {"inter_message_s", costs_.inter.message_s},
         {"intra_s_per_byte", costs_.intra.seconds_per_byte},
         {"intra_latency_s", costs_.intra.latency_s},
         {"intra_message_s", costs_.intra.message_s}}});
}

std::optional<GradientPlan> MeasuredPlanning::re_plan(const std::string& name, const Signature& signature,
                                                      const GradientPlan& current, std::uint32_t sequence) {
  if (is_over(current, sequence)) return plan(name, signature, sequence);
  if (!is_planned_again(signature)) return std::nullopt;
  if (const GradientPlan* fixed = fixed_for(name, signature); fixed != nullptr) {
    const bool changes = *fixed != current && current.until == 0 && !is_over(*fixed, sequence);
    return changes ? std::optional(plan(name, signature, sequence)) : std::nullopt;
  }
  const bool compared = contest_ && is_open(name, signature);
  if (!compared && current.epoch >= epoch_) return std::nullopt;
  Decision decision = decide(name, signature, sequence);
  if (decision.plan == current) return std::nullopt;
  tell(name, signature, decision);
  return std::move(decision.plan);
}

bool MeasuredPlanning::step_began(Nanoseconds now, bool counts) {
  if (!contest_ || contest_->over()) return false;
  const std::optional<Nanoseconds> before = std::exchange(began_, now);
  if (!before) return false;
  const double seconds = static_cast<double>(now - *before) * 1e-9;
  const bool changed = contest_->ended(counts ? std::optional(seconds) : std::nullopt);
  if (contest_->over()) {
    drift_.start_anew();
    log_({LogLevel::info,
          detail::concat("auto: ", contest_->verdict(), "; predicted: ", contest_->prediction()),
          {{"event", "compared"}}});
  }
  return changed;
}

void MeasuredPlanning::closing() {
  if (!contest_ || contest_->over()) return;
  log_({LogLevel::info,
        "auto: training ended before the ways to synchronise were compared; " + contest_->verdict() +
            ". The plan of the cost model is the best guess",
        {{"event", "compared"}}});
}

}  // namespace casync
