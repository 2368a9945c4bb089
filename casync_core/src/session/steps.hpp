#pragma once

#include "executor/measure/counters.hpp"

namespace casync {

/// Counts the program's steps: one begins when a tensor is reduced that was reduced in the one before. So a program
/// that reduces each of its gradients once in a step has as many steps as that, whatever it does besides. Pure: times
/// are passed in. One thread at a time writes, any thread reads.
class Steps {
 public:
  /// A tensor is submitted for the `time_of_name`-th time, to be reduced. `now` is the time, and `waited` how long the
  /// program's threads have waited for operations so far.
  void submitted(std::uint64_t time_of_name, Nanoseconds now, Nanoseconds waited) {
    if (time_of_name <= count_.get()) return;
    if (count_.get() > 0) {
      time_.add(now - began_);
      exposed_.add(waited - waited_before_);
    }
    began_ = now;
    waited_before_ = waited;
    count_.set(time_of_name);
  }

  void read(Metrics& metrics) const {
    metrics.steps = count_.get();
    metrics.step_time = time_.get();
    metrics.exposed_time = exposed_.get();
  }

 private:
  Count count_;
  HistogramCount time_;
  HistogramCount exposed_;
  Nanoseconds began_ = 0;  // these two: of the step under way
  Nanoseconds waited_before_ = 0;
};

}  // namespace casync
