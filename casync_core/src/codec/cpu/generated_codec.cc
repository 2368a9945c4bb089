#include "codec/cpu/generated_codec.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/generated.hpp"

namespace casync::codec {
namespace {

/// Every codec has this parameter; a file may have it itself, with a default of its own.
constexpr std::string_view kStartStep = "start_step";
/// Every codec with the runtime's residual has these.
constexpr std::string_view kFeedbackDecay = "feedback_decay";
constexpr std::string_view kFeedbackBits = "feedback_bits";

/// The shortest text that reads back as the same float32.
std::string text_of(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(value)).ptr;
  return {text, end};
}

/// "2, 4 or 8", "from 0 to 1"
std::string accepted_by(const GeneratedParameter& parameter) {
  if (parameter.accepted.empty()) return parameter.real ? "a number" : "a whole number";
  if (parameter.interval)
    return detail::concat("from ", text_of(parameter.accepted[0]), " to ", text_of(parameter.accepted[1]));
  std::string text;
  for (std::size_t i = 0; i < parameter.accepted.size(); ++i) {
    if (i > 0) text += i + 1 < parameter.accepted.size() ? ", " : " or ";
    text += text_of(parameter.accepted[i]);
  }
  return text;
}

bool accepts(const GeneratedParameter& parameter, double value) {
  if (parameter.accepted.empty()) return std::isfinite(value);
  if (parameter.interval) return value >= parameter.accepted[0] && value <= parameter.accepted[1];
  return std::ranges::find(parameter.accepted, value) != parameter.accepted.end();
}

Parameter take(const GeneratedParameter& parameter, Spec& spec, std::string& canonical) {
  const double value = parameter.real ? spec.take_number(parameter.name, parameter.standard)
                                      : spec.take_int(parameter.name, static_cast<int>(parameter.standard));
  if (!accepts(parameter, value)) spec.refuse(detail::concat(parameter.name, " must be ", accepted_by(parameter)));
  canonical += detail::concat(canonical.empty() ? "" : ", ", parameter.name, '=',
                              parameter.real ? text_of(value) : std::to_string(static_cast<int>(value)));
  Parameter taken;
  if (parameter.real)
    taken.real = static_cast<float>(value);
  else
    taken.whole = static_cast<std::int32_t>(value);
  return taken;
}

float take_decay(Spec& spec, std::string& canonical, std::string& known) {
  const auto decay = static_cast<float>(spec.take_number(kFeedbackDecay, 1));
  if (!(decay > 0 && decay <= 1)) spec.refuse(detail::concat(kFeedbackDecay, " must be above 0 and at most 1"));
  if (decay != 1) canonical += detail::concat(canonical.empty() ? "" : ", ", kFeedbackDecay, '=', text_of(decay));
  known += detail::concat(known.empty() ? "" : ", ", kFeedbackDecay, " (above 0, at most 1)");
  return decay;
}

int take_bits(Spec& spec, std::string& canonical, std::string& known) {
  const int bits = spec.take_int(kFeedbackBits, 32);
  if (bits != 32 && bits != 8) spec.refuse(detail::concat(kFeedbackBits, " must be 8 or 32"));
  if (bits != 32) canonical += detail::concat(canonical.empty() ? "" : ", ", kFeedbackBits, '=', bits);
  known += detail::concat(", ", kFeedbackBits, " (8 or 32)");
  return bits;
}

std::int32_t held(std::int64_t value) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(value, std::numeric_limits<std::int32_t>::max()));
}

/// The whole gradient as float32, for what looks at it once.
std::vector<float> values_of(const Segment& segment) {
  CASYNC_CHECK(segment.sources.size() == 1 && segment.sources[0].raw, "one raw source is proposed from");
  std::vector<float> values(static_cast<std::size_t>(segment.range.size()));
  const auto load = kernels().load_raw[static_cast<std::size_t>(segment.dtype)];
  load(segment.sources[0].data, segment.pre, nullptr, values.data(), segment.range.size());
  return values;
}

}  // namespace

Facts Instance::facts(const Shape& shape) const {
  Facts facts;
  facts.parameters = parameters.data();
  facts.n = shape.numel();
  facts.rows = held(shape.rows);
  facts.cols = held(shape.cols);
  return facts;
}

CodecInfo Instance::info() const {
  CodecInfo info;
  info.spec = spec;
  info.rounds.assign(codec.rounds.begin(), codec.rounds.end());
  info.feedback = codec.feedback;
  info.feedback_decay = feedback_decay;
  info.feedback_bits = feedback_bits;
  info.whole = codec.whole;
  info.fixed_size = codec.fixed_size;
  info.momentum = codec.momentum;
  return info;
}

Facts facts_of(const Instance& instance, const Segment& segment) {
  Facts facts = instance.facts(segment.shape);
  facts.state = segment.state.data();
  facts.step = step_of(segment.sequence);
  facts.world = static_cast<std::int32_t>(segment.world);
  facts.rank = segment.rank;
  facts.name = static_cast<std::int32_t>(static_cast<std::uint32_t>(segment.name_hash));
  facts.lr = segment.lr;
  facts.momentum = segment.momentum;
  facts.nesterov = segment.nesterov;
  facts.key = {.name_hash = segment.name_hash,
               .sequence = segment.sequence,
               .round = segment.round,
               .stream = static_cast<std::uint32_t>(segment.rank) << 1 | static_cast<std::uint32_t>(segment.role)};
  return facts;
}

std::vector<StateArray> states_of(const Instance& instance, const Shape& shape) {
  std::vector<StateArray> states;
  const Facts facts = instance.facts(shape);
  for (std::size_t i = 0; i < instance.codec.states.size(); ++i) {
    const GeneratedState& state = instance.codec.states[i];
    states.push_back({.name = std::string(state.name),
                      .elements = instance.kernels().elements(facts, static_cast<int>(i)),
                      .per_element = state.per_element,
                      .shared = state.shared,
                      .pending = state.pending});
  }
  return states;
}

void start_state(const Instance& instance, const Shape& shape, std::uint64_t name_hash, std::size_t index,
                 std::span<float> values) {
  Facts facts = instance.facts(shape);
  facts.key.name_hash = name_hash;
  facts.name = static_cast<std::int32_t>(static_cast<std::uint32_t>(name_hash));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = instance.kernels().start(facts, static_cast<int>(index), static_cast<std::int64_t>(i));
}

void propose_values(const Instance& instance, const Segment& segment, std::span<float> values) {
  const std::vector<float> gradient = values_of(segment);
  UnitJob job{.facts = facts_of(instance, segment), .accumulated = gradient.data()};
  std::vector<std::byte> scratch(static_cast<std::size_t>(instance.kernels().propose_scratch(job.facts)));
  job.scratch = scratch.data();
  values[0] = instance.kernels().propose(job);
}

void agree_on(const Instance& instance, const Segment& segment, std::span<const float> values) {
  instance.kernels().agree(facts_of(instance, segment), values[0]);
}

std::shared_ptr<const Codec> make_generated(const GeneratedCodec& codec, Spec& spec) {
  Instance instance{codec, std::string(codec.name), {}};
  std::string canonical;
  std::string known;
  for (const GeneratedParameter& parameter : codec.parameters) {
    instance.parameters.push_back(take(parameter, spec, canonical));
    known += detail::concat(known.empty() ? "" : ", ", parameter.name, " (", accepted_by(parameter), ")");
  }
  if (std::ranges::count(codec.parameters, kStartStep, &GeneratedParameter::name) == 0) {
    const int start = spec.take_int(kStartStep, 0);
    if (start < 0) spec.refuse(detail::concat(kStartStep, " must be at least 0"));
    instance.start_step = static_cast<std::uint32_t>(start);
    if (start > 0) canonical += detail::concat(canonical.empty() ? "" : ", ", kStartStep, '=', start);
    known += detail::concat(known.empty() ? "" : ", ", kStartStep, " (a whole number)");
  }
  if (codec.feedback == Feedback::wrapper) {
    instance.feedback_decay = take_decay(spec, canonical, known);
    instance.feedback_bits = take_bits(spec, canonical, known);
  }
  spec.finish(known);
  if (!canonical.empty()) instance.spec += "(" + canonical + ")";
  const Facts facts = instance.facts({});
  const auto choices = static_cast<std::size_t>(codec.choices);
  while (instance.choice < choices && !instance.kernels().fits(facts)) ++instance.choice;
  CASYNC_CHECK(instance.choice < choices, instance.spec, ": no code for these widths");
  if (codec.rounds.front().merge != Merge::none) return make_rounds(std::move(instance));
  return codec.bits.empty() ? make_units(std::move(instance)) : make_quantiser(std::move(instance));
}

}  // namespace casync::codec
