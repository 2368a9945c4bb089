#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "casync/codec.hpp"
#include "casync/route.hpp"

namespace casync {

/// What the mean of several does, and the busiest of them.
struct Share {
  double mean = 0;
  double busiest = 0;
  Share operator*(double factor) const { return {mean * factor, busiest * factor}; }
  Share operator/(double parts) const { return {mean / parts, busiest / parts}; }
  Share operator+(const Share& other) const { return {mean + other.mean, busiest + other.busiest}; }
};

/// Calls of the codec over one partition, per rank.
struct Calls {
  Share encodes;
  Share decodes;     ///< of payloads, each with the merge that it is fused with
  Share merges;      ///< of raw elements into a sum
  double tasks = 0;  ///< of the busiest rank
};

/// Messages over one kind of link. `payloads` and `raws` count partitions' worth of bytes in the busier direction.
struct RouteTraffic {
  Share payloads;  ///< per host between hosts, per rank inside one
  Share raws;
  Share messages;      ///< per rank
  double senders = 0;  ///< different ones, to one receiver
  double fan_in = 0;   ///< messages of one partition to one receiver
  double fan_out = 0;  ///< messages of one partition by one sender
  double part = 0;     ///< of the partitions, those of which it carries something
  bool used() const { return messages.busiest > 0; }
};

/// What is done between two sends in a row, and the second of them.
struct Layer {
  Calls leading;  ///< which a send waits for
  Calls ending;   ///< which none waits for
  RouteTraffic between;
  RouteTraffic inside;
};

/// What a route costs for a number of partitions, read from the workflows that it builds.
struct RouteCosts {
  std::vector<Layer> layers;  ///< the last one sends nothing
  std::uint32_t hops = 0;     ///< sends in a row
  std::uint32_t turn = 1;     ///< partitions of one turn around all owners
  Calls last;                 ///< the heaviest of the tasks that no send waits for: of one partition on one rank
  // On the critical path of one partition.
  std::uint32_t encodes = 0;
  std::uint32_t decodes = 0;
  // Of the busiest in all layers.
  double messages = 0;       ///< that a rank sends
  double rank_payloads = 0;  ///< per direction, in partitions
  double rank_raws = 0;
  double host_payloads = 0;  ///< likewise, of a host's link to the others
  double host_raws = 0;

  /// Whether elements are sent as they are.
  bool sends_raw(const CodecInfo& codec) const { return codec.identity || rank_raws > 0; }
};

/// The evaluator: builds one turn of partitions for all members, once, and counts what they do.
class RouteCounts {
 public:
  RouteCounts(const Route& route, const CodecInfo& codec, std::span<const std::uint32_t> host_of);

  RouteCosts at(std::uint32_t partitions) const;

 private:
  struct Call {
    std::uint32_t layer;
    std::uint32_t partition;
    Rank rank;
    double encodes, decodes, merges;
    bool leads;
  };
  struct Message {
    std::uint32_t layer;
    std::uint32_t partition;
    Rank from, to;
    double payloads, raws;
  };

  std::vector<std::uint32_t> host_of_;
  std::uint32_t hosts_ = 0;
  std::uint32_t turn_ = 1;
  std::uint32_t layers_ = 1;
  std::uint32_t encodes_ = 0;
  std::uint32_t decodes_ = 0;
  std::vector<Call> calls_;
  std::vector<Message> messages_;
};

}  // namespace casync
