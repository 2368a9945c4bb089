#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "common/numbered.hpp"
#include "executor/operation.hpp"

namespace casync {

/// The names that a program has used, and which of them an operation has now. Pure: the clock is passed in.
///
/// A name is free again when its operation is done and the program knows it, by poll or synchronize; or some time after
/// the submit, if nobody asks (Ctrl-C between backward and step). Until then a second submit is an error however fast
/// the first operation was: a program that depends on that fails now and then.
class Names {
 public:
  static constexpr Nanoseconds kUnasked = 100'000'000;

  /// The number of `name`, which may be new.
  std::uint32_t number_of(const std::string& name);
  /// Whether `name` has an operation that is not done.
  bool outstanding(const std::string& name) const;
  bool taken(std::uint32_t name, Nanoseconds now) const;
  /// `operation` has the name from now on. Returns how often the name was submitted, this time included.
  std::uint64_t take(std::uint32_t name, const Operation& operation);
  /// The program knows that `operation`, which had the name, is done.
  void release(std::uint32_t name, const Operation& operation);
  /// A submit that is not the program's own: it is counted, but takes nothing.
  std::uint64_t count(std::uint32_t name) { return ++names_[name].submits; }
  /// It has no operation, and its number will not be used again.
  void forget(std::uint32_t name);

 private:
  struct Name {
    std::string text;
    const Operation* latest = nullptr;
    std::uint64_t submits = 0;
  };

  Numbered<Name> names_;
  std::unordered_map<std::string, std::uint32_t> index_;
};

}  // namespace casync
