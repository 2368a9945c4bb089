#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "planner/search/model_plan.hpp"
#include "planner/search/step_model.hpp"

namespace casync {

/// One way to synchronise a gradient, as the timeline takes it.
struct Candidate {
  Alternative way;
  std::shared_ptr<const Codec> codec;
  StepItem item;
  double loss = 0;                         ///< how much it changes training
  bool few = false;                        ///< with as few partitions as may be, where more suit it best
  StepModel::Needs needs{};                ///< when nothing else goes on
  bool listed = false;                     ///< its topology is a list of phases
  std::optional<std::size_t> offloaded{};  ///< the candidate that is the same, computed on the host
};

/// A gradient whose codec is open, with all candidates: first what the rules say, the fastest alone before the others,
/// then other routes, then lists of phases, and then what a device computes, computed on the host.
struct SearchedGradient {
  std::vector<Candidate> candidates;
  std::size_t by_rules = 0;  ///< how many of them the rules say
  std::size_t named = 0;     ///< how many of them go by a route that has a name
  double raw = 0;            ///< bytes

  /// The rules' way with a codec.
  std::optional<std::size_t> with(const std::string& codec) const;
};

/// Per open gradient, which candidate.
using Choice = std::vector<std::size_t>;

/// How good a choice is.
struct Score {
  double seconds = std::numeric_limits<double>::infinity();
  double loss = 0;

  /// Whether it is shorter by `share`, or not longer and with less loss.
  bool better_than(const Score& other, double share) const {
    if (seconds < other.seconds * (1 - share)) return true;
    return seconds <= other.seconds && loss < other.loss;
  }
};

/// A change that saves a smaller part of the step counts as none.
inline constexpr double kNoticed = 1e-4;

/// All that a search for a model's plan chooses among, and what a choice takes. Whoever asks for more than
/// kSearchBookings stops.
class SearchSpace {
 public:
  explicit SearchSpace(const ModelRequest& request);

  std::size_t size() const { return gradients_.size(); }
  const SearchedGradient& gradient(std::size_t g) const { return gradients_[g]; }
  double ready_s(std::size_t g) const { return ready_[g]; }
  /// Of the candidates by the rules, in the order in which they were met.
  const std::vector<std::string>& codecs() const { return codecs_; }
  /// Open gradients, the large ones first; of one size, in the order of submission.
  const std::vector<std::size_t>& by_size() const { return by_size_; }
  /// Open gradients, and settled ones as numbers from size() on, in the order in which they are ready.
  const std::vector<std::size_t>& in_time() const { return in_time_; }

  PredictedStep predicted(const Choice& choice) const;
  /// Stops where the step takes longer than `limit`.
  Score score(const Choice& choice, double limit = std::numeric_limits<double>::infinity());
  /// When each gradient of in_time() ends.
  std::vector<double> ends(const Choice& choice);
  /// What all scores have cost so far (StepModel::bookings).
  std::size_t bookings() const { return bookings_; }
  std::vector<Alternative> ways(const Choice& choice) const;

 private:
  const Candidate& of(const Choice& choice, std::size_t g) const {
    return g < gradients_.size() ? gradients_[g].candidates[choice[g]] : settled_[g - gradients_.size()];
  }
  std::vector<double> ready_times() const;
  Candidate candidate(std::string_view name, const Signature& signature, const Alternative& way, double ready_s) const;
  void add(const OpenGradient& of, double ready_s);

  const ModelRequest& request_;
  CostTable costs_;                          // of links and codecs: all that the timeline needs, and copies
  std::vector<double> ready_;                // of the open gradients, and then of the settled ones
  std::vector<SearchedGradient> gradients_;  // the open ones
  std::vector<Candidate> settled_;
  std::vector<std::string> codecs_;
  std::vector<std::size_t> in_time_;
  std::vector<std::size_t> by_size_;
  std::size_t bookings_ = 0;
};

/// ByteComp's algorithms 1 and 2 (section 4.3), from a choice on, and then single changes while they help. It takes all
/// candidates, and stops where the space has seen more than `limit` bookings. `least` is the choice's score, and does
/// not grow.
void decide_options(SearchSpace& space, Choice& choice, Score& least, std::size_t limit);

/// No choice makes the step shorter than this: the longer of two times. A gradient has its own shortest way to go from
/// when it is ready. And each resource has to do, of all gradients that become ready from some time on, at least what
/// the way needs that needs least of it. Where candidates trade one resource for another it may lie far below the best
/// choice.
double bound_of(const SearchSpace& space);

/// Changes `choice` while there is something to gain: all gradients, halves of them, quarters, and so on down to single
/// ones, and then pairs. It takes no lists of phases. `least` is the choice's score.
void descend(SearchSpace& space, Choice& choice, Score& least);

}  // namespace casync
