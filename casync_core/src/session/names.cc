#include "session/names.hpp"

namespace casync {
namespace {

bool is_done(const Operation& operation) { return operation.done.load(std::memory_order_acquire); }

}  // namespace

std::uint32_t Names::number_of(const std::string& name) {
  const auto [at, is_new] = index_.try_emplace(name, names_.next());
  if (is_new) names_.add({.text = name});
  return at->second;
}

void Names::forget(std::uint32_t name) {
  index_.erase(names_[name].text);
  names_.erase(name);
}

bool Names::outstanding(const std::string& name) const {
  const auto at = index_.find(name);
  const Operation* const latest = at == index_.end() ? nullptr : names_[at->second].latest;
  return latest != nullptr && !is_done(*latest);
}

bool Names::taken(std::uint32_t name, Nanoseconds now) const {
  const Operation* const latest = names_[name].latest;
  return latest != nullptr && (!is_done(*latest) || now - latest->submitted < kUnasked);
}

std::uint64_t Names::take(std::uint32_t name, const Operation& operation) {
  names_[name].latest = &operation;
  return count(name);
}

void Names::release(std::uint32_t name, const Operation& operation) {
  if (names_[name].latest == &operation) names_[name].latest = nullptr;
}

}  // namespace casync
