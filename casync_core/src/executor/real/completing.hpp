#pragma once

namespace casync {

/// Marks this thread, as long as it lives, as one that calls completions: it may not wait, and takes no turn, or
/// completions would call each other without end. Not nested.
class Completing {
 public:
  /// `driver`: the executor whose turn the thread has just driven; null: none.
  explicit Completing(const void* driver) : driver_(driver) { here_ = this; }
  ~Completing() { here_ = nullptr; }
  Completing(const Completing&) = delete;
  Completing& operator=(const Completing&) = delete;

  /// As long as it lives, this thread is none that calls completions: for what Python destroys, at any time.
  class Lifted {
   public:
    Lifted() : was_(here_) { here_ = nullptr; }
    ~Lifted() { here_ = was_; }
    Lifted(const Lifted&) = delete;
    Lifted& operator=(const Lifted&) = delete;

   private:
    Completing* was_;
  };

  /// This thread's; null if it calls no completions.
  static Completing* here() { return here_; }

  const void* driver() const { return driver_; }
  /// A completion has submitted something to the driver, whose next turn is this thread's to see to.
  void submitted() { submitted_ = true; }
  bool has_submitted() const { return submitted_; }

 private:
  static inline thread_local Completing* here_ = nullptr;

  const void* driver_;
  bool submitted_ = false;
};

}  // namespace casync
