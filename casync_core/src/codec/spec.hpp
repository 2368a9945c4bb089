#pragma once

#include <map>
#include <string>
#include <string_view>

namespace casync::codec {

/// A codec's spec taken apart: `name` or `name(key=value, ...)`. Each value is taken once, by the codec's factory; what
/// is left over is a parameter that the codec does not have.
///   Spec spec = parse_spec("terngrad(bits=4)");
///   int bits = spec.take_int("bits", 2);   // 4
///   spec.finish("bits (2, 4 or 8)");       // throws InvalidArgument if anything else was given
class Spec {
 public:
  Spec(std::string text, std::string name, std::map<std::string, std::string, std::less<>> values)
      : text_(std::move(text)), name_(std::move(name)), values_(std::move(values)) {}

  const std::string& name() const { return name_; }
  int take_int(std::string_view key, int otherwise);
  double take_number(std::string_view key, double otherwise);

  /// Throws InvalidArgument that names the first parameter nobody took; `known` says in words what the codec accepts.
  void finish(std::string_view known) const;

  /// Throws InvalidArgument: "codec 'terngrad(bits=3)': bits must be 2, 4 or 8".
  [[noreturn]] void refuse(std::string_view why) const;

 private:
  std::string text_;
  std::string name_;
  std::map<std::string, std::string, std::less<>> values_;
};

/// Throws InvalidArgument for text that is not of the form above. Blanks around names and values do not count.
Spec parse_spec(std::string_view text);

}  // namespace casync::codec
