#pragma once

#include "casync/types.hpp"

namespace casync {

/// What a thread has had of the processors. Only differences mean anything.
struct ThreadTime {
  Nanoseconds worked = 0;  ///< on a processor
  Nanoseconds waited = 0;  ///< for one, though it had work; nothing where the system does not tell that
};

/// Of the calling thread since it began. Takes about a microsecond.
ThreadTime thread_time();

/// What a program has had of one of its threads. Only differences mean anything, and of one thread.
struct ThreadMoment {
  const void* thread = nullptr;  ///< which; null: it was not measured
  Nanoseconds worked = 0;        ///< for the program
  Nanoseconds hindered = 0;      ///< it waited for a processor, or worked for the runtime
};

/// Of the calling thread.
ThreadMoment program_time();

/// While it lives, the calling thread works for the runtime and not for the program.
class CoreScope {
 public:
  CoreScope() : begun_(thread_time().worked) {}
  ~CoreScope();
  CoreScope(const CoreScope&) = delete;
  CoreScope& operator=(const CoreScope&) = delete;
  /// What the thread has worked so far.
  Nanoseconds worked() const { return thread_time().worked - begun_; }

 private:
  Nanoseconds begun_;
};

}  // namespace casync
