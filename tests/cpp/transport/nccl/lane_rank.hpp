#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.hpp"
#include "cuda/standin_device.hpp"
#include "transport/conformance.hpp"
#include "transport/nccl/nccl_lane.hpp"

namespace casync::nccl::test {

using casync::cuda::test::Buffer;
using casync::cuda::test::kSecond;
using casync::cuda::test::sleep_ms;

/// How the lanes of a test speak to each other, in order for each pair.
class Mail {
 public:
  virtual ~Mail() = default;
  virtual void post(Rank to, std::span<const std::byte> message) = 0;
  /// Nothing: there is none now.
  virtual std::optional<std::pair<Rank, std::vector<std::byte>>> take() = 0;
};

/// A lane, what it reported, and the loop that every test needs.
class LaneRank {
 public:
  LaneRank(Mail& mail, LaneWorld of, Nanoseconds patience)
      : world(of), device(casync::cuda::test::standin(), static_cast<int>(of.rank % 2)), current(device), mail_(mail) {
    casync::cuda::test::standin_nccl();
    lane = std::make_unique<NcclLane>(device.ordinal(), world, NcclLane::Options{.library = {}, .patience = patience},
                                      [this] { ++rings; });
  }

  void open() {
    lane->open([this](Rank peer, std::span<const std::byte> message) { mail_.post(peer, message); });
  }
  void turn() {
    while (const auto letter = mail_.take()) lane->hear(letter->first, letter->second);
    lane->poll(told);
  }
  bool until(const std::function<bool()>& done, Nanoseconds timeout = 30 * kSecond) {
    for (const Nanoseconds begin = steady_now(); steady_now() < begin + timeout; sleep_ms(1)) {
      turn();
      if (done()) return true;
    }
    return false;
  }
  bool until_ready() {
    return until([this] { return lane->ready(); });
  }
  /// Until so many bodies went and came.
  bool until_over(std::size_t sent, std::size_t came) {
    return until([&] { return told.sent.size() >= sent && told.bodies.size() >= came; });
  }
  void send(Rank peer, const Buffer& buffer, std::uint64_t id) { lane->send(peer, ref(buffer), id); }
  void accept(Rank peer, const Buffer& buffer, std::uint64_t id) { lane->accept(peer, ref(buffer), id); }

  const LaneWorld world;
  std::atomic<int> rings{0};
  casync::cuda::Device device;
  casync::cuda::Device::Current current;
  std::unique_ptr<NcclLane> lane;
  transport::test::Recorder told;

 private:
  static MemoryRef ref(const Buffer& buffer) { return {buffer.memory(), buffer.bytes(), MemoryKind::device}; }

  Mail& mail_;
};

}  // namespace casync::nccl::test
