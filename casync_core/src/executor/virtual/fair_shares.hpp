#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "casync/types.hpp"

namespace casync {

/// Messages that move at the same time over links that they share, and when each of them is through. Pure: the time is
/// passed in.
///
/// A link carries one way. Each message takes a link out of its sender and one into its receiver, and rates are max-min
/// fair, as those of TCP's connections nearly are: no message can be faster without another one that is no faster
/// itself becoming slower. Rates are dealt at most once in `quantum`; a message that begins between takes an even part
/// of its links until then, and what one leaves stays unused.
class FairShares {
 public:
  static constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

  /// Bytes a second of each end, which has one link out and one in.
  FairShares(const std::vector<double>& rates, Nanoseconds quantum);

  /// A message of so many bytes begins to move from one end to another.
  void start(std::uint64_t message, std::size_t from, std::size_t to, std::size_t bytes, Nanoseconds now);
  /// When to call through() next; kNever while nothing moves.
  Nanoseconds next() const;
  /// The messages that are through by now, which move no longer. They stand until the next call.
  const std::vector<std::uint64_t>& through(Nanoseconds now);

 private:
  struct Moving {
    std::uint64_t message;
    std::size_t out;  // of links_
    std::size_t in;
    double left;  // bytes, when the rate was given
    double rate;
    Nanoseconds since;
    Nanoseconds end;
    bool has_rate = false;  // while rates are dealt
  };
  struct Link {
    double rate;
    std::size_t messages = 0;
    // While rates are dealt.
    double free = 0;
    std::size_t open = 0;   // messages without a rate
    std::size_t first = 0;  // of its messages, in users_
  };

  using Share = std::pair<double, std::size_t>;  // of each message, by link

  static bool later(const Moving& a, const Moving& b) { return a.end > b.end; }
  static void give(Moving& moving, double rate, Nanoseconds now);
  void change(Nanoseconds now);
  void deal(Nanoseconds now);

  Nanoseconds quantum_;
  std::vector<Link> links_;     // of end e: out 2 e, in 2 e + 1
  std::vector<Moving> moving_;  // a heap: the first to end comes first
  // Scratch: a step has thousands of calls.
  std::vector<std::uint32_t> users_;
  std::vector<Share> shares_;  // a heap: the least share comes first
  std::vector<std::uint64_t> through_;
  Nanoseconds dealt_ = 0;       // when rates were dealt
  Nanoseconds deals_ = kNever;  // when they are dealt next
};

}  // namespace casync
