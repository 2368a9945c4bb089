#include "planner/search/request.hpp"

#include <algorithm>
#include <cctype>

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
      "compression '", compression, "' cannot be read; write auto, auto(onebit, terngrad(bits=4)), or always(onebit)"));
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

void check_adasum(const PlanRequest& request) {
  if (is_floating(request.signature.dtype)) return;
  throw InvalidArgument(detail::concat("tensor ", request.name, ": op Adasum takes float32, float64, float16 and ",
                                       "bfloat16, not ", name_of(request.signature.dtype), "; use Sum or Average"));
}

}  // namespace

std::optional<std::string_view> parse_always(std::string_view text) {
  constexpr std::string_view kWord = "always";
  text = trim(text);
  if (!text.starts_with(kWord)) return std::nullopt;
  const std::string_view rest = trim(text.substr(kWord.size()));
  if (!rest.starts_with('(')) return std::nullopt;
  if (!rest.ends_with(')')) refuse(text);
  const std::string_view inside = trim(rest.substr(1, rest.size() - 2));
  if (inside.empty()) refuse(text);
  return parse_always(inside).value_or(inside);
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
  text = parse_always(text).value_or(text);
  const auto specs = parse_auto(text);
  if (!specs) make_codec(text);
  for (const std::string& spec : specs.value_or(std::vector<std::string>{})) make_codec(spec);
}

bool takes_momentum(std::string_view text) {
  text = parse_always(text).value_or(text);
  const auto specs = parse_auto(text);
  if (!specs) return make_codec(text)->info().momentum;
  for (const std::string& spec : *specs) {
    if (make_codec(spec)->info().momentum)
      throw InvalidArgument(detail::concat("compression '", text, "': ", spec,
                                           " takes over the optimizer's momentum, so it is no choice among others; "
                                           "name it alone"));
  }
  return false;
}

namespace {

/// All that a compression may become.
std::vector<std::shared_ptr<const Codec>> codecs_of(std::string_view text) {
  text = parse_always(text).value_or(text);
  auto specs = parse_auto(text);
  if (!specs) specs = {std::string(text)};
  if (specs->empty()) specs = usual_candidates(DType::float32);
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const std::string& spec : *specs) codecs.push_back(make_codec(spec));
  return codecs;
}

}  // namespace

bool keeps_state(std::string_view text) {
  constexpr Shape kAnyMatrix{256, 256};
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
  const auto always = parse_always(signature.compression);
  const std::string_view compression = always.value_or(signature.compression);
  asked.always = always.has_value();
  auto specs = parse_auto(compression);
  if (!specs) {
    const auto codec = compression.empty() ? none : make_codec(compression);
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
