#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "casync/device_lane.hpp"
#include "common/wire.hpp"
#include "cuda/communicator.hpp"
#include "transport/nccl/launch_order.hpp"

namespace casync::nccl {

/// The lane between devices of any hosts, by a communicator of NCCL that is this session's alone.
///
/// The first rank makes the communicator's id and tells it. Each begins its end of it, and tells all others once
/// whether it has become ready. It is used where all have: everyone hears the same, so everyone comes to the same end.
/// Else bodies go by the host, for the reason in `refusal`.
///
/// What is launched when is LaunchOrder's; one group at a turn of `poll`. What hangs is ended by a watchdog, within
/// `patience` (Communicator).
class NcclLane final : public DeviceLane {
 public:
  struct Options {
    std::string library;                    ///< where NCCL may be, as cuda::nccl has it
    Nanoseconds patience = 60'000'000'000;  ///< with a communicator that does not go on
  };
  /// `ring`: as session/make_lane.hpp has it. Throws DeviceFailure.
  NcclLane(int device, LaneWorld world, Options options, std::function<void()> ring);
  ~NcclLane() override;

  void open(Tell tell) override;
  void hear(Rank peer, std::span<const std::byte> message) override;
  bool ready() const override { return is_ready_; }
  void send(Rank peer, MemoryRef body, std::uint64_t id) override;
  void accept(Rank peer, MemoryRef body, std::uint64_t id) override;
  bool poll(TransportSink& sink) override;
  bool moving() const override { return failure_.empty() && (!groups_.empty() || order_.has_unmoved()); }
  const std::string& failure() const override { return failure_; }
  const std::string& refusal() const override { return refusal_; }
  void close(Nanoseconds patience) override;

 private:
  enum class Word : std::uint8_t { id, well, unwell, order };

  template <typename Work>
  void guarded(const Work& work);
  void begin(const cuda::NcclId& id);
  void say(bool is_well, const std::string& why);
  void tell_all(Word word, std::span<const std::byte> rest);
  void tell_order();
  void settle();
  void fail(const std::string& why);
  static bool report(const std::vector<LaunchOrder::Exchange>& over, TransportSink& sink);
  void launch();

  cuda::Device device_;
  const LaneWorld world_;
  const Options options_;
  const std::function<void()> ring_;
  Tell tell_;
  const cuda::Nccl* nccl_ = nullptr;
  std::unique_ptr<cuda::Communicator> comm_;
  std::vector<std::optional<bool>> is_well_;  // what each rank has said of its communicator
  LaunchOrder order_;
  std::deque<std::vector<LaunchOrder::Exchange>> groups_;  // launched, and not over
  std::uint64_t over_ = 0;                                 // groups that were reported
  bool is_ready_ = false;
  std::string broken_;  // why the communicator is of no use any more
  std::string refusal_;
  std::string failure_;
};

}  // namespace casync::nccl
