#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "casync/device_lane.hpp"
#include "common/wire.hpp"
#include "cuda/bell.hpp"
#include "cuda/device.hpp"
#include "transport/ipc/landings.hpp"

namespace casync::ipc {

/// The lane between devices of one host, by CUDA's interprocess memory: each sender writes into memory of its
/// receiver's device.
///
/// Who accepts a body tells its sender where it may land. The sender copies it there, over NVLink or PCIe, and says so
/// when the copy is over; the receiver copies it on to where it was wanted. So no memory but landings is ever seen by
/// another process, neither slots nor the program's, and what a process frees is its own affair.
///
/// When it opens, each rank writes a pattern into a landing, and every peer reads it: where that fails, in containers
/// that forbid it or between devices without a way, no rank of the world has the lane.
class IpcLane final : public DeviceLane {
 public:
  /// `ring`: as session/make_lane.hpp has it. Throws DeviceFailure.
  IpcLane(int device, LaneWorld world, std::function<void()> ring);
  ~IpcLane() override;

  void open(Tell tell) override;
  void hear(Rank peer, std::span<const std::byte> message) override;
  bool ready() const override;
  void send(Rank peer, MemoryRef body, std::uint64_t id) override;
  void accept(Rank peer, MemoryRef body, std::uint64_t id) override;
  bool poll(TransportSink& sink) override;
  bool moving() const override { return !copies_.empty() || !unmoved_sent_.empty() || !unmoved_accepted_.empty(); }
  const std::string& failure() const override { return failure_; }
  const std::string& refusal() const override { return refusal_; }
  void close(Nanoseconds patience) override;

 private:
  enum class Word : std::uint8_t { hello, answer, refused, land, leave, landed };
  enum class Reach : std::uint8_t { unknown, yes, no };
  struct Body {
    MemoryRef memory;
    std::uint64_t id = 0;
    const Landing* landing = nullptr;  // of one that is accepted; null: it is not moved
  };
  struct Grant {  // a body may come, or is not wanted
    cuda::DevicePointer memory = 0;
    bool is_wanted = true;
  };
  struct Peer {
    Reach mine = Reach::unknown;                          // whether this rank reaches its memory
    Reach theirs = Reach::unknown;                        // and it this rank's
    std::map<std::uint32_t, cuda::DevicePointer> opened;  // its landings, here
    std::set<std::uint32_t> shown;                        // this rank's landings that it has opened
    std::deque<Body> sent;                                // that wait for a grant
    std::deque<Grant> granted;                            // that wait for a send
    std::deque<Body> accepted;                            // that have not landed
  };
  struct Copy {  // on one of the streams
    Rank peer = 0;
    bool comes = false;  // from a landing to where it was wanted; else to the peer
    std::uint64_t id = 0;
    const Landing* landing = nullptr;
    cuda::EventHandle over = nullptr;
  };

  void say(Rank peer, Word word, const Landing* landing = nullptr, bool flag = false);
  void greeted(Rank peer, ByteReader& reader);
  void granted(Rank peer, ByteReader& reader);
  void landed(Rank peer);
  void go(Rank peer);
  cuda::DevicePointer open_landing(Rank peer, ByteReader& reader);
  void copy(Copy what, cuda::DevicePointer to, cuda::DevicePointer from, std::size_t bytes);
  void refuse(const std::string& why);
  bool ends_by(Nanoseconds deadline);
  template <typename Work>
  void guarded(const Work& work);

  const cuda::Driver& driver_;
  cuda::Device device_;
  LaneWorld world_;
  cuda::Bell bell_;
  std::unique_ptr<cuda::Events> events_;
  cuda::Stream out_ = nullptr;
  cuda::Stream in_ = nullptr;
  Landings* landings_ = nullptr;
  const Landing* probe_ = nullptr;
  Tell tell_;
  std::vector<Peer> peers_;
  std::deque<Copy> copies_;
  std::vector<std::uint64_t> unmoved_sent_;      // to be reported: nobody wanted them
  std::vector<std::uint64_t> unmoved_accepted_;  // likewise: they are not wanted
  std::string refusal_;
  std::string failure_;
};

}  // namespace casync::ipc
