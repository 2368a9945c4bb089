#include "engine/submissions.hpp"

#include <algorithm>
#include <utility>

#include "common/hash.hpp"

namespace casync {

void Submissions::define(Request definition) {
  const std::uint32_t name = number_of(definition.name);
  registrations_.add({name, std::move(definition.signature), std::move(definition.site)});
  hold(name);
}

void Submissions::forget(std::uint32_t registration) {
  const std::uint32_t name = registrations_[registration].name;
  registrations_.erase(registration);
  let_go(name);
}

void Submissions::let_go(std::uint32_t name) {
  --names_[name].uses;
  forget_unused(name);
}

void Submissions::forget_unused(std::uint32_t number) {
  const Name& name = names_[number];
  const bool runs = std::ranges::any_of(name.runs, [](std::uint32_t run) { return run != kNone; });
  if (name.uses > 0 || runs || !name.skipped.empty()) return;
  if (name.next_sequence > 0) forgotten_.put(hash_text(name.text), name.next_sequence);
  name_index_.erase(name.text);
  names_.erase(number);
}

std::uint32_t Submissions::number_of(const std::string& name) {
  const auto [at, is_new] = name_index_.try_emplace(name, names_.next());
  if (is_new) names_.add({.text = name, .next_sequence = forgotten_.of(hash_text(name))});
  return at->second;
}

void Submissions::skip(const std::string& text, std::uint32_t sequence) {
  const std::uint32_t number = number_of(text);
  Name& name = names_[number];
  name.skipped.push_back(sequence);
  pass(name);
  forget_unused(number);
}

/// Goes on to the next sequence that is not skipped.
void Submissions::pass(Name& name) {
  while (std::erase(name.skipped, name.next_sequence) > 0) ++name.next_sequence;
}

std::uint32_t Submissions::submit(std::uint32_t registration, std::uint32_t handle, Settled settled,
                                  std::uint32_t step) {
  if (free_runs_.empty()) {
    free_runs_.push_back(runs());
    runs_.emplace_back();
  }
  const std::uint32_t number = free_runs_.back();
  free_runs_.pop_back();
  Registration& what = registrations_[registration];
  ++what.outstanding;
  Name& name = names_[what.name];
  runs_[number] = {.active = true,
                   .registration = registration,
                   .name = what.name,
                   .op = what.op,
                   .sequence = name.next_sequence++,
                   .handle = handle,
                   .settled = settled,
                   .step = step};
  name.runs[runs_[number].sequence % 2] = number;
  if (!name.skipped.empty()) pass(name);
  ++outstanding_;
  return number;
}

void Submissions::begin(std::uint32_t number) {
  runs_[number].begun = true;
  ++under_way_;
}

void Submissions::end(std::uint32_t number) {
  Run& run = runs_[number];
  run.active = false;
  --outstanding_;
  if (run.begun) --under_way_;
  std::uint32_t& slot = names_[run.name].runs[run.sequence % 2];
  if (slot == number) slot = kNone;
  free_runs_.push_back(number);
  --registrations_[run.registration].outstanding;
}

std::uint32_t Submissions::find_name(const std::string& text) const {
  const auto at = name_index_.find(text);
  return at == name_index_.end() ? kNone : at->second;
}

std::uint32_t Submissions::find_run(std::uint32_t name, std::uint32_t sequence) const {
  const std::uint32_t number = names_[name].runs[sequence % 2];
  return number != kNone && runs_[number].sequence == sequence ? number : kNone;
}

bool Submissions::has_run(std::uint32_t name, std::uint32_t op) const {
  return std::ranges::any_of(names_[name].runs,
                             [&](std::uint32_t number) { return number != kNone && runs_[number].op == op; });
}

}  // namespace casync
