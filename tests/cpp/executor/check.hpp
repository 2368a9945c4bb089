#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/schedule.hpp"

namespace casync::test {

/// What a schedule's run showed.
struct Verification {
  std::vector<std::string> failures;  ///< empty: all held
  std::uint64_t operations = 0;       ///< ended well
  std::uint64_t errors = 0;           ///< ended with an error that the schedule allows
  std::uint64_t turns = 0;
};

/// Runs a schedule on real bytes and holds it against the promises:
///   no hang; without a lasting fault every operation ends well, with one in an error that names a culprit or well;
///   results equal the reference bit for bit, on every rank (so replicas are identical);
///   uncompressed floats are near the sum in double; inputs are untouched; runtime memory is all given back;
///   residuals equal the reference's, whose workers encode whole gradients (so K, batches and timing change nothing);
///   sum of inputs = sum of results and residuals;
///   what runs on a stream is launched as soon as it may be, and nothing of the host reads what is only launched.
Verification verify(const Schedule& schedule);

/// Runs the seeds [first, first + count); stops after `most` failures. Each failure has the line that replays it.
Verification verify_seeds(std::uint64_t first, std::uint64_t count, std::size_t most = 3);

}  // namespace casync::test
