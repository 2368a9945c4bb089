#pragma once

#include <optional>
#include <vector>

#include "casync/planner.hpp"
#include "planner/cost/recent.hpp"

namespace casync {

/// What was measured of the links of one kind: between hosts, or inside them. Nothing: it was not.
struct MeasuredLink {
  std::optional<double> latency_s;
  std::optional<double> seconds_per_byte;
  std::optional<double> message_s;
  std::optional<double> processor_s_per_byte{};
  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

/// The samples of one rank and one kind of link. Keeps the last kMost of each sort.
class LinkSamples {
 public:
  static constexpr std::size_t kMost = 256;

  /// Bytes came in, in this time.
  void add_body(const Sample& sample) { bodies_.add(sample); }
  /// A processor was at work for so long while these bytes came in.
  void add_processor(const Sample& sample) { processor_.add(sample); }
  /// A message was handed to the transport.
  void add_message(const Sample& sample) { messages_.add(sample); }
  /// A short message went to a rank, and its answer came.
  void add_round_trip(double seconds) { round_trips_.add(seconds); }

  /// - The rate is that of the largest bodies, those of half the largest one and more: in them latency and the pause
  ///   between two looks at the network weigh least. A quarter of them is faster. The others have waited for a sender
  ///   or a receiver that had other work, and say less of the link.
  /// - The latency is half the round trip than which a quarter is shorter: most others wait behind large messages.
  /// - The time per message is what the line through the messages gives for no bytes. Messages of one length do not
  ///   tell it.
  /// - What a byte costs a processor is told by the bodies as the rate is.
  MeasuredLink link() const;

 private:
  Recent<Sample, kMost> bodies_, messages_, processor_;
  Recent<double, kMost> round_trips_;
};

/// Seconds per byte of the largest samples, those of half the largest one and more: a quarter of them takes less.
std::optional<double> rate_of_largest(const std::vector<Sample>& samples);

/// The link of a job from those of its ranks: the slowest rank's rate, because every route passes it; of the rest the
/// median, because a hop is as often one of a fast rank as of a slow one. `hindered`: ranks wait for processors. A rank
/// that has waited longer than others sees a slower link, so there the rate is the median as well.
MeasuredLink reduce(const std::vector<MeasuredLink>& ranks, bool hindered = false);
/// `prior`, but for what was measured.
LinkCost measured_over(const MeasuredLink& measured, const LinkCost& prior);

}  // namespace casync
