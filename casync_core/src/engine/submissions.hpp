#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/numbered.hpp"
#include "engine/control.hpp"
#include "engine/sequences.hpp"

namespace casync {

/// What this rank's program has registered and submitted.
///
/// A run of a tensor is (name, sequence): the sequence counts the submits of the name. A rank is at most one run ahead
/// of another, so of one name two runs are outstanding at most. Locally a run has a number, the *instance* of events
/// and actions, which is used again after the run's end.
///
/// Registrations are forgotten when the program is told to, and a name when nothing is of it any more: but for how
/// often it was submitted.
class Submissions {
 public:
  static constexpr std::uint32_t kNone = 0xffffffffU;

  struct Registration {
    std::uint32_t name = 0;
    Signature signature;
    std::string site;
    std::uint32_t op = kNone;       ///< what its next run will be, once that is agreed and as long as it is kept
    std::uint32_t outstanding = 0;  ///< runs
  };
  struct Run {
    bool active = false;
    bool begun = false;
    bool nonfinite = false;
    std::uint32_t registration = 0;
    std::uint32_t name = 0;
    std::uint32_t op = kNone;
    std::uint32_t sequence = 0;
    std::uint32_t handle = 0;
    bool on_stream = false;              ///< its compute tasks run on a stream
    std::int64_t rows = 0;               ///< allgather: this rank's own
    std::vector<std::int64_t> splits{};  ///< alltoall: this rank's for each member
    // Of this rank until it begins, then of all:
    Settled settled = 0;
    std::uint32_t step = 0;
    bool by_lane = false;         ///< its messages go by the lane of a device
    std::size_t eager_bytes = 0;  ///< of the messages that it sent unasked
  };

  /// The next registration: they are numbered in order.
  void define(Request definition);
  /// It will not be submitted again, and no run of it is outstanding.
  void forget(std::uint32_t registration);
  /// Returns the number of the new run.
  std::uint32_t submit(std::uint32_t registration, std::uint32_t handle, Settled settled = 0, std::uint32_t step = 0);
  /// Run `sequence` of tensor `name` will not be submitted here.
  void skip(const std::string& name, std::uint32_t sequence);
  void begin(std::uint32_t run);
  void end(std::uint32_t run);

  Registration& registration(std::uint32_t number) { return registrations_[number]; }
  const Registration& registration(std::uint32_t number) const { return registrations_[number]; }
  /// Null: it was never defined, or is forgotten.
  const Registration* find_registration(std::uint32_t number) const { return registrations_.find(number); }
  /// The number of the next one.
  std::uint32_t registrations() const { return registrations_.next(); }
  Run& run(std::uint32_t number) { return runs_[number]; }
  const Run& run(std::uint32_t number) const { return runs_[number]; }
  /// The numbers of runs are below this one.
  std::uint32_t runs() const { return static_cast<std::uint32_t>(runs_.size()); }
  std::size_t outstanding() const { return outstanding_; }
  /// How many of the outstanding runs have begun.
  std::size_t under_way() const { return under_way_; }

  /// Something else is of the name, which stays known until it is let go.
  void hold(std::uint32_t name) { ++names_[name].uses; }
  void let_go(std::uint32_t name);
  const std::string& text(std::uint32_t name) const { return names_[name].text; }
  /// The number of a name, or kNone.
  std::uint32_t find_name(const std::string& text) const;
  bool was_submitted(std::uint32_t name, std::uint32_t sequence) const { return sequence < names_[name].next_sequence; }
  /// The run if it is outstanding, or kNone.
  std::uint32_t find_run(std::uint32_t name, std::uint32_t sequence) const;
  /// Whether an outstanding run of the name is one of `op`.
  bool has_run(std::uint32_t name, std::uint32_t op) const;

 private:
  struct Name {
    std::string text;
    std::uint32_t next_sequence = 0;
    std::uint32_t uses = 0;                           // registrations, and what else holds it
    std::vector<std::uint32_t> skipped{};             // of those to come
    std::array<std::uint32_t, 2> runs{kNone, kNone};  // by sequence % 2
  };

  std::uint32_t number_of(const std::string& name);
  static void pass(Name& name);
  void forget_unused(std::uint32_t name);

  Numbered<Registration> registrations_;
  Numbered<Name> names_;
  std::unordered_map<std::string, std::uint32_t> name_index_;
  Sequences forgotten_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> free_runs_;
  std::size_t outstanding_ = 0;
  std::size_t under_way_ = 0;
};

}  // namespace casync
