#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "executor/memory/memory.hpp"
#include "executor/run/codec_trial.hpp"
#include "plan/planning.hpp"

namespace casync {

class Stream;

/// One compute task made ready to run on any thread: a codec segment and the memory its sources live in.
struct Job {
  static constexpr std::size_t kNone = ~std::size_t{0};

  std::uint32_t instance = 0;
  std::uint32_t task = 0;
  Primitive primitive = Primitive::encode;
  const Codec* codec = nullptr;
  std::vector<Source> sources;
  void* result = nullptr;      ///< where the user's result of this partition goes; null: nowhere
  std::vector<bool> is_users;  ///< of each source: it is the program's memory, and not a slot's
  Segment segment;
  PackedResidual* packed = nullptr;     ///< has the segment's residual; null: the segment has it
  std::uint32_t partition = 0;          ///< of that
  bool on_device = false;               ///< its memory is a device's, which computes it
  bool by_lane = false;                 ///< so are its slots
  bool device_failed = false;           ///< which has failed
  std::size_t weight = 0;               ///< bytes of gradient it touches
  std::size_t refused = kNone;          ///< the source that the codec did not write, if that is what went wrong
  std::vector<std::size_t> nonfinite;   ///< of a result that is not finite: the sources that are not, either
  std::unique_ptr<CodecTrial> trial;    ///< set: this is no task, but a codec to be timed
  std::unique_ptr<PlanWork> plan_work;  ///< set: this is no task, but something that the planning computes
  bool settles = false;  ///< the segment is the gradient, for the codec's values: to propose, or to take over
  bool settled = false;  ///< it has taken them over
  bool again = false;    ///< the segment is a result already: it is encoded or decoded without what is kept
  /// Where what that loses is held back, and the factor that makes it a contribution; a factor of 0: nowhere.
  struct HeldBack {
    float* residual = nullptr;  ///< null: `packed` has it
    float factor = 0;
  } held_back;
  Nanoseconds time = 0;          ///< that it was at work, with those before it that run_all names
  std::size_t timed_jobs = 0;    ///< how many these are, itself included
  std::size_t timed_weight = 0;  ///< bytes of gradient that they touch

  /// Runs it; returns the text of what went wrong, empty if nothing did.
  std::string run();
  /// Its result is not finite: which of the sources are not, either.
  void find_nonfinite();

 private:
  void settle();
  void compute();
  void compute_again();
  Segment alone(const Source& source, std::span<float* const> state, void* out) const;
  std::size_t find_refused() const;
};

/// Runs `jobs` one after the other, and appends each one's text to `errors`. Of neighbours that do the same with the
/// same codec the last one has the time of all: many small jobs are no more than two looks at the clock.
void run_all(std::span<const std::unique_ptr<Job>> jobs, std::vector<std::string>& errors);

/// What the factors of a segment depend on besides the task.
struct ComputeContext {
  std::uint32_t members = 1;
  Rank rank = 0;
  std::uint32_t step = 0;
  Stream* stream = nullptr;  ///< where the operation is computed; null: on the host
};

/// Fills `job` for compute task `task` of `instance`.
void prepare(Job& job, Memory& memory, const TaskGraph& graph, std::uint32_t instance, std::uint32_t task,
             const ComputeContext& context);

}  // namespace casync
