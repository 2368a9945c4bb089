#include "planner/search/request.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <span>

#include "casync/error.hpp"
#include "casync/route.hpp"
#include "planner/cost/world.hpp"

namespace casync {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.remove_suffix(1);
  return text;
}

[[noreturn]] void refuse(std::string_view compression) {
  throw InvalidArgument(detail::concat(
      "compression '", compression,
      "' cannot be read; write auto, auto(onebit, terngrad(bits=4)), covap(fp16, interval=4), or always(onebit)"));
}

/// Splits at commas; those within brackets belong to a codec's parameters.
std::vector<std::string> split_specs(std::string_view list, std::string_view compression) {
  std::vector<std::string> specs;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    const bool end = i == list.size();
    if (!end && list[i] == '(') ++depth;
    if (!end && list[i] == ')' && --depth < 0) refuse(compression);
    if (!end && (list[i] != ',' || depth > 0)) continue;
    specs.emplace_back(trim(list.substr(begin, i - begin)));
    if (specs.back().empty()) refuse(compression);
    begin = i + 1;
  }
  if (depth != 0) refuse(compression);
  return specs;
}

/// Bare "auto": a 16-bit float where that is shorter than the gradient's own, and the codec that shortens most.
std::vector<std::string> usual_candidates(DType dtype) {
  if (size_of(dtype) > 2) return {"fp16", "onebit"};
  return {"onebit"};
}

std::optional<std::string> parse_topology(const PlanRequest& request) {
  const std::string& text = request.signature.topology;
  if (text.empty() || text == "auto") return request.options.topology;
  try {
    make_route(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("tensor ", request.name, ": ", error.what()));
  }
  return text;
}

/// Why this gradient cannot be compressed with `codec`, or nothing.
std::optional<std::string> why_incompressible(const Signature& signature, const CodecInfo& codec) {
  if (codec.identity) return std::nullopt;
  if (!is_floating(signature.dtype)) {
    return detail::concat("its dtype is ", name_of(signature.dtype),
                          ", and codecs take floating-point gradients only; use compression=\"none\" for it");
  }
  if (signature.op == ReduceOp::adasum && !takes_adasum(codec)) {
    return "its op is Adasum, which goes with casts alone; use compression \"none\", \"fp16\" or \"bf16\" for it";
  }
  const bool carried =
      signature.op == ReduceOp::average || signature.op == ReduceOp::sum || signature.op == ReduceOp::adasum;
  if (!carried) {
    return detail::concat("its op is ", name_of(signature.op),
                          ", and codecs carry Average and Sum only; use compression=\"none\" for it");
  }
  return std::nullopt;
}

/// Returns what stands between the brackets of "word(...)"; nothing if the text has another form.
std::optional<std::string_view> in_brackets(std::string_view text, std::string_view word) {
  text = trim(text);
  if (!text.starts_with(word)) return std::nullopt;
  const std::string_view rest = trim(text.substr(word.size()));
  if (!rest.starts_with('(')) return std::nullopt;
  if (!rest.ends_with(')')) refuse(text);
  const std::string_view inside = trim(rest.substr(1, rest.size() - 2));
  if (inside.empty()) refuse(text);
  return inside;
}

std::optional<std::string_view> parse_always(std::string_view text) {
  const auto inside = in_brackets(text, "always");
  return inside ? parse_always(*inside).value_or(*inside) : inside;
}

[[noreturn]] void refuse_covap(std::string_view text, std::string_view why) {
  throw InvalidArgument(detail::concat("compression '", trim(text), "': ", why));
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

/// Takes one of "interval=4", "init=0.5" and so on.
void take_parameter(Compression& found, std::string_view key, std::string_view value, std::string_view text) {
  const auto refuse_value = [&](std::string_view why) {
    refuse_covap(text, detail::concat(key, "=", value, " is not ", why));
  };
  Coefficient& coefficient = found.coefficient;
  if (key == "interval") {
    const auto interval = number_in<std::uint32_t>(value);
    if (!interval || *interval == 0 || *interval > kMostInterval) {
      refuse_value(detail::concat("a whole number from 1 to ", kMostInterval,
                                  ": what waits is applied at once, as if the learning rate were so many times "
                                  "larger"));
    }
    found.interval = *interval;
  } else if (key == "ascend_steps") {
    const auto steps = number_in<std::uint32_t>(value);
    if (!steps) refuse_value(detail::concat("a whole number from 1 to ", std::numeric_limits<std::uint32_t>::max()));
    coefficient.ascend_steps = *steps;
  } else if (key == "init" || key == "ascend_range") {
    const auto number = number_in<double>(value);
    if (!number) refuse_value("a number");
    (key == "init" ? coefficient.init : coefficient.ascend_range) = *number;
  } else {
    refuse_covap(text, detail::concat("covap does not know '", key, "'; it has interval, init, ascend_steps and ",
                                      "ascend_range, as in covap(fp16, interval=4)"));
  }
  if (const auto why = why_not(coefficient)) refuse_covap(text, *why);
}

/// The codec and the parameters in "covap(fp16, interval=4)". All may be left out.
Compression parse_covap(std::string_view inside, std::string_view text) {
  const std::vector<std::string> parts = split_specs(inside, text);
  Compression found{.interval = 0, .choice = "none"};
  const bool has_codec = parts[0].find('=') >= parts[0].find('(');
  if (has_codec) found.choice = parts[0];
  std::vector<std::string_view> taken;
  for (const std::string_view part : std::span(parts).subspan(has_codec ? 1 : 0)) {
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = trim(part.substr(0, equals));
    if (std::ranges::count(taken, key) > 0) refuse_covap(text, detail::concat("it has ", key, " twice"));
    taken.push_back(key);
    take_parameter(found, key, trim(part.substr(std::min(equals + 1, part.size()))), text);
  }
  const bool rises = std::ranges::any_of(taken, [](std::string_view key) { return key.starts_with("ascend"); });
  if (rises && std::ranges::count(taken, "init") == 0)
    refuse_covap(text, "ascend_steps and ascend_range say how the coefficient rises from init, which is not given");
  if (found.choice == "covap" || in_brackets(found.choice, "covap")) refuse_covap(text, "it is within another covap");
  if (parse_always(found.choice)) refuse_covap(text, "always goes around covap; write always(covap(...))");
  if (parse_auto(found.choice)) {
    refuse_covap(text,
                 "auto compares ways by the time of single steps, and here no step is like the next; name a codec");
  }
  if (make_codec(found.choice)->info().momentum && found.interval != 1) {
    refuse_covap(text, detail::concat(found.choice,
                                      " takes over the optimizer's momentum, and has to see the gradient "
                                      "of every step"));
  }
  return found;
}

void check_adasum(const PlanRequest& request) {
  if (is_floating(request.signature.dtype)) return;
  throw InvalidArgument(detail::concat("tensor ", request.name, ": op Adasum takes float32, float64, float16 and ",
                                       "bfloat16, not ", name_of(request.signature.dtype), "; use Sum or Average"));
}

}  // namespace

Compression parse_compression(std::string_view text) {
  const auto always = parse_always(text);
  const std::string_view inside = trim(always.value_or(text));
  const auto covap = in_brackets(inside, "covap");
  Compression found = inside == "covap" ? parse_covap("none", text)
                      : covap           ? parse_covap(*covap, text)
                                        : Compression{.choice = std::string(inside)};
  found.always = always.has_value();
  return found;
}

std::optional<std::string> why_not_held(const Signature& signature) {
  if (signature.kind == OpKind::reducescatter)
    return "a reducescatter would keep a residual of the whole input on every rank";
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  if (sums && is_floating(signature.dtype)) return std::nullopt;
  const std::string_view op = name_of(signature.op);
  return detail::concat(op.starts_with('A') ? "an " : "a ", op, " of ", name_of(signature.dtype),
                        " has no residual that keeps what the others leave");
}

std::optional<std::vector<std::string>> parse_auto(std::string_view text) {
  text = trim(text);
  if (!text.starts_with("auto")) return std::nullopt;
  const std::string_view rest = trim(text.substr(4));
  if (rest.empty()) return std::vector<std::string>{};
  if (rest.front() != '(') return std::nullopt;
  if (rest.back() != ')') refuse(text);
  std::vector<std::string> specs = split_specs(rest.substr(1, rest.size() - 2), text);
  for (const std::string& spec : specs) {
    if (spec == "covap" || in_brackets(spec, "covap"))
      refuse_covap(text,
                   "auto compares ways by the time of single steps, and with covap no step is like the next; "
                   "name covap alone");
  }
  return specs;
}

void check_compression(std::string_view text) {
  const std::string choice = parse_compression(text).choice;
  const auto specs = parse_auto(choice);
  if (!specs) make_codec(choice);
  for (const std::string& spec : specs.value_or(std::vector<std::string>{})) make_codec(spec);
}

bool takes_momentum(std::string_view text) {
  const std::string choice = parse_compression(text).choice;
  const auto specs = parse_auto(choice);
  if (!specs) return make_codec(choice)->info().momentum;
  for (const std::string& spec : *specs) {
    if (make_codec(spec)->info().momentum)
      throw InvalidArgument(detail::concat("compression '", choice, "': ", spec,
                                           " takes over the optimizer's momentum, so it is no choice among others; "
                                           "name it alone"));
  }
  return false;
}

namespace {

/// All that a compression may become.
std::vector<std::shared_ptr<const Codec>> codecs_of(std::string_view text) {
  const std::string choice = parse_compression(text).choice;
  auto specs = parse_auto(choice);
  if (!specs) specs = {choice};
  if (specs->empty()) specs = usual_candidates(DType::float32);
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const std::string& spec : *specs) codecs.push_back(make_codec(spec));
  return codecs;
}

}  // namespace

std::uint32_t interval_of(std::string_view text) {
  const std::uint32_t interval = parse_compression(text).interval;
  return interval == 0 ? kMostInterval : interval;
}

bool rises(std::string_view text) {
  const Compression compression = parse_compression(text);
  return compression.interval != 1 && compression.coefficient.init < 1;
}

bool keeps_state(std::string_view text) {
  constexpr Shape kAnyMatrix{256, 256};
  if (interval_of(text) > 1) return true;
  return std::ranges::any_of(codecs_of(text), [&](const auto& codec) {
    return codec->info().feedback != Feedback::none || !codec->state(kAnyMatrix).empty();
  });
}

std::vector<std::string> device_codecs(std::string_view text) {
  std::vector<std::string> specs;
  for (const auto& codec : codecs_of(text)) {
    if (codec->device_code() != nullptr || codec->info().cast) specs.push_back(codec->info().spec);
  }
  return specs;
}

Asked parse_request(const PlanRequest& request) {
  const Signature& signature = request.signature;
  Asked asked;
  asked.topology = parse_topology(request);
  if (signature.op == ReduceOp::adasum) check_adasum(request);
  const auto none = make_codec("none");
  const Compression compression = parse_compression(signature.compression);
  asked.always = compression.always;
  asked.interval = compression.interval;
  asked.coefficient = compression.coefficient;
  if (const auto why_not = why_not_held(signature); asked.interval != 1 && why_not) {
    const std::string several = asked.interval == 0 ? "several" : detail::concat(asked.interval);
    throw InvalidArgument(detail::concat("tensor ", request.name, " cannot be synchronised in one step of ", several,
                                         ": ", *why_not, "; give it a codec without covap"));
  }
  auto specs = parse_auto(compression.choice);
  if (!specs) {
    const auto codec = compression.choice.empty() ? none : make_codec(compression.choice);
    if (const auto why_not = why_incompressible(signature, codec->info())) {
      throw InvalidArgument(
          detail::concat("tensor ", request.name, " cannot be compressed with ", codec->info().spec, ": ", *why_not));
    }
    asked.codecs = {codec};
    return asked;
  }
  asked.automatic = true;
  asked.codecs = {none};
  if (specs->empty()) specs = usual_candidates(signature.dtype);
  for (const std::string& spec : *specs) {
    const auto codec = make_codec(spec);
    if (!codec->info().identity && !why_incompressible(signature, codec->info())) asked.codecs.push_back(codec);
  }
  return asked;
}

std::vector<std::string> candidates(const PlanRequest& request) {
  std::vector<std::string> specs;
  for (const auto& codec : parse_request(request).codecs) specs.push_back(codec->info().spec);
  return specs;
}

void check_route(const PlanRequest& request, std::string_view topology, const Codec& codec) {
  try {
    check_supports(*make_route(topology), {codec.info(), request.signature.op, request.world.host_of()});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(detail::concat("tensor ", request.name, ": ", error.what(), " or \"auto\""));
  }
}

}  // namespace casync
