#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/compute.hpp"

namespace casync {

/// Runs compute jobs somewhere: a thread pool, the stream of a device, or a virtual processor.
class Workers {
 public:
  /// Jobs that are through, each with the text of what went wrong, or none.
  using Finished = std::vector<std::pair<std::unique_ptr<Job>, std::string>>;

  virtual ~Workers() = default;
  /// Takes a batch of prepared jobs.
  virtual void run(std::vector<std::unique_ptr<Job>> batch) = 0;
};

}  // namespace casync
