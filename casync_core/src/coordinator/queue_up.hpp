#pragma once

#include <algorithm>
#include <functional>

namespace casync {

/// Puts `one` at its place in a queue: a higher priority stands before a lower one, and equal ones stand as they came.
/// Where all are equal that is the end, and nothing is searched for.
template <typename Queue, typename Priority>
void queue_up(Queue& queue, const typename Queue::value_type& one, Priority priority_of) {
  const auto priority = std::invoke(priority_of, one);
  const bool overtakes = !queue.empty() && std::invoke(priority_of, queue.back()) < priority;
  queue.insert(overtakes ? std::ranges::upper_bound(queue, priority, std::greater(), priority_of) : queue.end(), one);
}

}  // namespace casync
