#pragma once

#include <optional>
#include <vector>

#include "casync/planner.hpp"

namespace casync {

/// What was measured of the links of one kind: between hosts, or inside them. Nothing: it was not.
struct MeasuredLink {
  std::optional<double> latency_s;
  std::optional<double> seconds_per_byte;
  std::optional<double> message_s;
  friend bool operator==(const MeasuredLink&, const MeasuredLink&) = default;
};

/// The samples of one rank and one kind of link. Keeps the last kMost of each sort.
class LinkSamples {
 public:
  static constexpr std::size_t kMost = 256;

  /// Bytes came in, in this time.
  void add_body(const Sample& sample) { keep(bodies_, next_body_, sample); }
  /// A message was handed to the transport.
  void add_message(const Sample& sample) { keep(messages_, next_message_, sample); }
  /// A short message went to a rank, and its answer came.
  void add_round_trip(double seconds) { keep(round_trips_, next_round_trip_, seconds); }

  /// - The rate is the median over the largest bodies, those of half the largest one and more: in them latency and the
  ///   pause between two looks at the network weigh least.
  /// - The latency is half the median round trip.
  /// - The time per message is what the line through the messages gives for no bytes. Messages of one length do not
  ///   tell it.
  MeasuredLink link() const;

 private:
  template <typename T>
  static void keep(std::vector<T>& samples, std::size_t& next, const T& sample) {
    if (samples.size() < kMost) {
      samples.push_back(sample);
    } else {
      samples[next++ % kMost] = sample;
    }
  }

  std::vector<Sample> bodies_, messages_;
  std::vector<double> round_trips_;
  std::size_t next_body_ = 0, next_message_ = 0, next_round_trip_ = 0;
};

/// Seconds per byte: the median over the largest samples, those of half the largest one and more.
std::optional<double> rate_of_largest(const std::vector<Sample>& samples);

/// The link of a job from those of its ranks: the slowest rank's rate, because every route passes it; of the rest the
/// median, because a hop is as often one of a fast rank as of a slow one.
MeasuredLink reduce(const std::vector<MeasuredLink>& ranks);
/// `prior`, but for what was measured.
LinkCost measured_over(const MeasuredLink& measured, const LinkCost& prior);

}  // namespace casync
