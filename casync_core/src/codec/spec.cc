#include "codec/spec.hpp"

#include <charconv>
#include <utility>

#include "casync/error.hpp"

namespace casync::codec {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

[[noreturn]] void malformed(std::string_view text) {
  throw InvalidArgument(detail::concat("codec '", text, "' is not of the form name or name(key=value, ...)"));
}

template <typename Number>
Number to_number(const Spec& spec, std::string_view key, const std::string& text) {
  Number number{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size())
    spec.refuse(detail::concat(key, "=", text, " is not a number of the right kind"));
  return number;
}

}  // namespace

int Spec::take_int(std::string_view key, int otherwise) {
  const auto node = values_.extract(std::string(key));
  return node.empty() ? otherwise : to_number<int>(*this, key, node.mapped());
}

double Spec::take_number(std::string_view key, double otherwise) {
  const auto node = values_.extract(std::string(key));
  return node.empty() ? otherwise : to_number<double>(*this, key, node.mapped());
}

void Spec::finish(std::string_view known) const {
  if (values_.empty()) return;
  refuse(detail::concat("no parameter '", values_.begin()->first, "'; ",
                        known.empty() ? "it has none" : detail::concat("known: ", known)));
}

void Spec::refuse(std::string_view why) const { throw InvalidArgument(detail::concat("codec '", text_, "': ", why)); }

Spec parse_spec(std::string_view text) {
  const std::string_view whole = trimmed(text);
  const std::size_t open = whole.find('(');
  const std::string_view name = trimmed(whole.substr(0, open));
  std::map<std::string, std::string, std::less<>> values;
  if (name.empty()) malformed(text);
  if (open != std::string_view::npos) {
    if (whole.back() != ')') malformed(text);
    std::string_view inside = trimmed(whole.substr(open + 1, whole.size() - open - 2));
    while (!inside.empty()) {
      const std::size_t comma = inside.find(',');
      const std::string_view pair = inside.substr(0, comma);
      const std::size_t equals = pair.find('=');
      if (equals == std::string_view::npos) malformed(text);
      const std::string_view key = trimmed(pair.substr(0, equals));
      const std::string_view value = trimmed(pair.substr(equals + 1));
      if (key.empty() || value.empty()) malformed(text);
      if (!values.emplace(key, value).second)
        throw InvalidArgument(detail::concat("codec '", text, "' gives '", key, "' twice"));
      if (comma == std::string_view::npos) break;
      inside.remove_prefix(comma + 1);
      if (trimmed(inside).empty()) malformed(text);
    }
  }
  return {std::string(whole), std::string(name), std::move(values)};
}

}  // namespace casync::codec
