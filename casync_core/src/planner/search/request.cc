#include "planner/search/request.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

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

/// 4 in " interval = 4".
std::uint32_t parse_interval(std::string_view part, std::string_view text) {
  constexpr std::string_view kKey = "interval";
  const std::size_t equals = part.find('=');
  if (equals == std::string_view::npos || trim(part.substr(0, equals)) != kKey) {
    refuse_covap(text, detail::concat("covap does not know '", part, "'; write covap(fp16, interval=4)"));
  }
  const std::string_view digits = trim(part.substr(equals + 1));
  std::uint32_t interval = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), interval);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  if (!is_number || interval == 0 || interval > kMostInterval) {
    refuse_covap(text, detail::concat("interval=", digits, " is not a whole number from 1 to ", kMostInterval,
                                      ": what waits is applied at once, as if the learning rate were so many times "
                                      "larger"));
  }
  return interval;
}

/// The codec and the interval in "covap(fp16, interval=4)". Both may be left out.
Compression parse_covap(std::string_view inside, std::string_view text) {
  const std::vector<std::string> parts = split_specs(inside, text);
  Compression found{.interval = 0, .choice = "none"};
  const bool has_codec = parts[0].find('=') >= parts[0].find('(');
  if (has_codec) found.choice = parts[0];
  for (std::size_t i = has_codec ? 1 : 0; i < parts.size(); ++i) found.interval = parse_interval(parts[i], text);
  if (parts.size() > (has_codec ? 2 : 1)) refuse_covap(text, "it has two intervals; write covap(fp16, interval=4)");
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
  return split_specs(rest.substr(1, rest.size() - 2), text);
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
