#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// Virtual time: what is to happen, and when. Entries of one time happen in an order drawn from the seed, so that a
/// schedule that no clock would ever show twice is found again by its seed.
class Agenda {
 public:
  /// Something that entries are for.
  class Actor {
   public:
    virtual void happen(std::uint32_t what, std::uint64_t value) = 0;

   protected:
    ~Actor() = default;
  };

  explicit Agenda(std::uint64_t seed) : state_(seed) {}
  Agenda(const Agenda&) = delete;
  Agenda& operator=(const Agenda&) = delete;

  Nanoseconds now() const { return now_; }
  /// `actor.happen(what, value)` at `time`, or now if that has passed.
  void at(Nanoseconds time, Actor& actor, std::uint32_t what, std::uint64_t value);
  /// Lets the next entry happen; false if there is none.
  bool next();

  std::uint64_t random();
  /// A number in [0, limit]; 0 for limits up to 0.
  Nanoseconds up_to(Nanoseconds limit);

 private:
  struct Entry {
    Nanoseconds time;
    std::uint64_t tie;
    Actor* actor;
    std::uint64_t value;
    std::uint32_t what;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const { return a.time != b.time ? a.time > b.time : a.tie > b.tie; }
  };

  std::uint64_t state_;
  Nanoseconds now_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, Later> entries_;
};

}  // namespace casync
