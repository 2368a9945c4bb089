#include "executor/virtual/agenda.hpp"

#include <algorithm>

namespace casync {

std::uint64_t Agenda::random() {
  // splitmix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

Nanoseconds Agenda::up_to(Nanoseconds limit) {
  return limit <= 0 ? 0 : static_cast<Nanoseconds>(random() % (static_cast<std::uint64_t>(limit) + 1));
}

void Agenda::at(Nanoseconds time, Actor& actor, std::uint32_t what, std::uint64_t value) {
  entries_.push({std::max(time, now_), random(), &actor, value, what});
}

bool Agenda::next() {
  if (entries_.empty()) return false;
  const Entry entry = entries_.top();
  entries_.pop();
  now_ = entry.time;
  entry.actor->happen(entry.what, entry.value);
  return true;
}

}  // namespace casync
