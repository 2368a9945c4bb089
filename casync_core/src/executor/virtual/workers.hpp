#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/run/workers.hpp"
#include "executor/virtual/agenda.hpp"

namespace casync {

/// Processors in virtual time: batches in the order given, each on the processor that is free first. The real
/// computation takes place at a batch's beginning or at its end, as the seed says, so that what reads too early or
/// writes too late shows.
class VirtualWorkers final : public Workers, private Agenda::Actor {
 public:
  struct Options {
    int threads = 1;
    Nanoseconds per_job = 1'000;
    double seconds_per_byte = 1e-10;
    std::function<Nanoseconds(const Job&)> cost{};  ///< of a job, instead of the two above
    bool early = true;  ///< a batch may compute at its begin, as the seed says; false: always at its end
    /// A stream: one processor, on which a batch computes when those before it have, not at the end of their time.
    bool in_order = false;
  };

  /// `news`: something waits for `collect`.
  VirtualWorkers(Agenda& agenda, Options options, std::function<void()> news);

  void run(std::vector<std::unique_ptr<Job>> batch) override;
  /// Moves what is finished to the end of `finished`.
  void collect(Finished& finished);

 private:
  enum What : std::uint32_t { kBegin, kEnd };
  struct Batch {
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::string> errors;  // one per job once computed
  };
  void happen(std::uint32_t what, std::uint64_t value) override;

  Agenda& agenda_;
  Options options_;
  std::function<void()> news_;
  std::vector<Nanoseconds> free_at_;
  std::vector<Batch> batches_;
  std::vector<std::uint64_t> free_batches_;
  Finished finished_;
};

}  // namespace casync
