#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "casync/planner.hpp"

namespace casync {

/// One gradient on the timeline.
struct TimelineItem {
  double ready_s = 0;  ///< when backward has made it
  double raw = 0;      ///< bytes
  double payload = 0;  ///< bytes, encoded
  Topology topology = Topology::parameter_server;
  std::uint32_t partitions = 1;
  bool identity = false;  ///< codec `none`: nothing is encoded, and merging costs `codec`'s decode
  CodecCost codec{};
};

/// F(S): when a set S of gradients is synchronised, on one busiest rank of a homogeneous world. Three resources, each
/// of which does one thing at a time and fills its gaps: the processor, the uplink and the downlink. A gradient's share
/// of each comes from its topology's Statement; it goes through them in up to kPieces pieces, which overlap with each
/// other and with other gradients.
///
///   Timeline timeline(costs, host_of);
///   for (const TimelineItem& item : items) timeline.add(item);   // in the order in which they are submitted
///   timeline.finish();
///
/// Incremental: add() returns when that gradient ends and never moves an earlier one.
class Timeline {
 public:
  Timeline(const CostTable& costs, std::vector<std::uint32_t> host_of);

  double add(const TimelineItem& item);
  double finish() const { return finish_; }

 private:
  /// Does one thing at a time. Work goes into the earliest idle time, in several parts if need be: what it stands for
  /// is many small tasks.
  class Resource {
   public:
    /// Books `duration` at or after `from`; returns when the last of it ends.
    double book(double from, double duration);

   private:
    struct Busy {
      double begin;
      double end;
    };
    std::deque<Busy> busy_;  // sorted, disjoint
  };

  /// Both directions at once: a rank sends as much as it receives.
  double transfer(double from, double duration);

  CostTable costs_;
  std::vector<std::uint32_t> host_of_;
  Resource processor_;
  Resource uplink_;
  Resource downlink_;
  double finish_ = 0;
};

}  // namespace casync
