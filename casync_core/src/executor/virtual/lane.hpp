#pragma once

#include <string>
#include <vector>

#include "casync/device_lane.hpp"

namespace casync {

/// The lane of a device in virtual time: bodies go by a network of their own, on which one starts when sender and
/// receiver have met. Its memory is the host's, whose addresses say nothing of whose it is.
class VirtualLane final : public DeviceLane {
 public:
  /// `port` is this rank's end of that network.
  explicit VirtualLane(Transport& port) : port_(port), is_there_(port.size(), false) {}

  void open(Tell tell) override;
  void hear(Rank peer, std::span<const std::byte> message) override;
  bool ready() const override;
  void send(Rank peer, MemoryRef body, std::uint64_t id) override;
  void accept(Rank peer, MemoryRef body, std::uint64_t id) override;
  bool poll(TransportSink& sink) override { return port_.poll(sink); }
  bool moving() const override { return port_.moving(); }
  const std::string& refusal() const override { return well_; }
  const std::string& failure() const override { return well_; }
  void close(Nanoseconds /*patience*/) override {}

 private:
  const std::string well_;
  Transport& port_;
  std::vector<bool> is_there_;                // per rank: its lane is open
  std::vector<std::vector<std::byte>> lost_;  // where bodies go that nobody wants
};

}  // namespace casync
