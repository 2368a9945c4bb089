#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "casync/codec.hpp"
#include "casync/planner.hpp"
#include "planner/cost/world.hpp"

namespace casync {

/// Where a gradient is, and where its codec's calls are computed.
enum class Place : std::uint8_t {
  host,       ///< both on the host
  device,     ///< both on the device
  offloaded,  ///< it is on the device, and computed on the host: it is copied there, and its result back
};

/// One gradient on the timeline.
struct StepItem {
  double ready_s = 0;  ///< when backward has made it
  double raw = 0;      ///< bytes
  double payload = 0;  ///< bytes, encoded
  std::string topology = "ps";
  std::uint32_t partitions = 1;
  const CodecInfo* codec = nullptr;
  CodecCost cost{};  ///< of the codec's calls
  Place place = Place::host;
  double copies_s = 0;  ///< between device and host, there and back
};

/// F(S): when a set S of gradients is synchronised, on one rank of a homogeneous world. Five resources, each of which
/// does one thing at a time and fills its gaps: the processor, the device, copies between the two, the host's NIC, and
/// the rank's link inside the host (a rank sends as much as it receives, so both directions of a link are one). The
/// backward pass is the device's where gradients are on one. A gradient goes through them step by step,
/// as the workflows of its route say, in a few pieces, which overlap with each other and with other gradients.
///
/// Where ranks have no second processor, all that a rank does takes turns: its backward pass, its codecs, its copies
/// inside the host, its bodies between hosts, and the runtime's own work for each gradient. Where they have less than
/// one, all that takes the longer.
///
/// A step takes of a resource what the mean rank does, because owners are dealt so that in the end all ranks do as
/// much; but it lasts no less than it does on the busiest rank. So a hundred gradients with one owner each cost no more
/// than if everybody owned a part of each, while one such gradient alone takes as long as its owner does.
///
/// Left out, and seen in the virtual executor: a pool that is too small for all that could be under way (at most 6 %
/// on BERT's shapes with 24 MiB), and that the senders of one lone gradient collide at a receiver.
///
///   StepModel timeline(costs, world);
///   for (const StepItem& item : items) timeline.add(item);   // in the order in which they are submitted
///   timeline.finish();
///
/// Incremental: add() returns when that gradient ends and never moves an earlier one.
class StepModel {
 public:
  /// `world` outlives it.
  StepModel(CostTable costs, const World& world);

  double add(const StepItem& item);
  double finish() const { return finish_; }
  /// Seconds for which each resource is taken, and until when the last gradient takes.
  struct Needs {
    double processor = 0, device = 0, copies = 0, nic = 0, inside = 0;
    double finish = 0;
  };
  Needs needs() const;
  /// Steps that were put on a resource: what the timeline has cost to make.
  std::size_t bookings() const { return bookings_; }

 private:
  /// Does one thing at a time. Work goes into the earliest idle time, in several parts if need be: what it stands for
  /// is many small tasks.
  class Resource {
   public:
    /// Books `duration` at or after `from`; returns when the last of it ends.
    double book(double from, double duration);
    double booked() const { return booked_; }

   private:
    struct Busy {
      double begin;
      double end;
    };
    std::deque<Busy> busy_;  // sorted, disjoint
    double booked_ = 0;
  };

  struct Gradient;

  /// Until when the busiest rank, or host, is at what the pieces of one gradient have it do in one layer. Where pieces
  /// have different owners each piece has another, and its own of these.
  struct Busiest {
    double computes = 0, between = 0, inside = 0;
  };

  /// One step of a piece on one resource; returns when it ends. The busiest rank takes the pieces one after the other.
  double take(Resource& resource, double from, const Share& share, double& busiest_until);
  /// Two steps of a piece in `parts`: what the first resource has done goes through the second while the first goes on.
  /// What is done last takes `last` or more of the second.
  struct Stage {
    Resource& resource;
    const Share& share;
    double& busiest_until;
  };
  double relay(double from, const Stage& first, const Stage& second, std::uint32_t parts, double last = 0);
  Share carried_by_processor(const Gradient& gradient, const RouteTraffic& traffic, double bytes) const;
  /// Sends what a piece sends in a layer, beside computing what leads to it or what ends with it. Returns when the
  /// last of it has arrived, or is computed.
  double pass(const Gradient& gradient, const Layer& layer, Busiest& busiest, double from, const Share& leading,
              const Share& ending, std::uint32_t parts);
  double synchronise(const Gradient& gradient);
  Gradient describe(const StepItem& item, double ready_s);
  /// Whether all that a rank does is done by one processor.
  bool takes_turns() const { return costs_.processors < 2; }
  /// Until what ends at `until_s` when nothing else is done; returns when it does end.
  double compute_backward(Resource& where, double until_s);

  CostTable costs_;
  const World& world_;
  Resource processor_;
  Resource device_;
  Resource copies_;
  Resource nic_;
  Resource inside_;
  double backward_s_ = 0;    // alone
  double backward_end_ = 0;  // beside all else
  double finish_ = 0;
  std::size_t bookings_ = 0;
};

}  // namespace casync
