// What every lane of devices must do, on the stand-in: ranks of one thread, whose words to each other are queued here.
#include "casync/device_lane.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/device.hpp"
#include "standin/nccl/standin_nccl.hpp"
#include "standin/standin.hpp"
#include "transport/ipc/ipc_lane.hpp"
#include "transport/nccl/nccl_lane.hpp"

namespace casync {
namespace {

using Bytes = std::vector<std::byte>;

const cuda::Driver& driver() {
  setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1);
  return cuda::driver();
}

/// Memory of the stand-in's device 0.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : device_(driver(), 0), bytes_(bytes) {
    const cuda::Device::Current current(device_);
    CASYNC_CUDA(driver(), cuMemAlloc_v2, &address_, std::max<std::size_t>(bytes, 1));
  }
  ~Memory() {
    const cuda::Device::Current current(device_);
    driver().cuMemFree_v2(address_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  MemoryRef ref() const { return {reinterpret_cast<std::byte*>(address_), bytes_, MemoryKind::device}; }
  /// Where the host sees the bytes, when nothing is at work on them.
  std::byte* seen() const {
    return reinterpret_cast<std::byte*>(static_cast<std::int64_t>(address_) + standin_distance());
  }
  Bytes read() const { return {seen(), seen() + bytes_}; }
  void write(const Bytes& bytes) const {
    if (!bytes.empty()) std::memcpy(seen(), bytes.data(), bytes.size());
  }

 private:
  cuda::Device device_;
  std::size_t bytes_;
  cuda::DevicePointer address_ = 0;
};

struct Told final : TransportSink {
  void on_head(Rank, std::span<const std::byte>) override { ADD_FAILURE() << "a lane has no heads"; }
  void on_sent(std::uint64_t id) override { sent.push_back(id); }
  void on_body(std::uint64_t id) override { bodies.push_back(id); }
  void on_peer_down(Rank, std::string_view) override {}
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> bodies;
};

/// The lanes of all ranks.
class Mesh {
 public:
  using Make = std::function<std::unique_ptr<DeviceLane>(Rank rank, Rank size)>;

  Mesh(Rank size, const Make& make) : told(size) {
    driver();
    for (Rank rank = 0; rank < size; ++rank) lanes.push_back(make(rank, size));
    for (Rank rank = 0; rank < size; ++rank) {
      lanes[rank]->open([this, rank](Rank peer, std::span<const std::byte> message) {
        words_[{rank, peer}].emplace_back(message.begin(), message.end());
      });
    }
  }
  ~Mesh() {  // at a time, as ranks do: one may wait for the others
    std::vector<std::thread> threads;
    for (const auto& lane : lanes) threads.emplace_back([&lane] { lane->close(1'000'000'000); });
    for (std::thread& thread : threads) thread.join();
  }

  /// Each rank hears one word of each peer and polls.
  void turn() {
    for (auto& [way, words] : words_) {
      if (words.empty()) continue;
      const Bytes word = std::move(words.front());
      words.pop_front();
      lanes[way.second]->hear(way.first, word);
    }
    for (Rank rank = 0; rank < lanes.size(); ++rank) lanes[rank]->poll(told[rank]);
  }
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 20'000 && !done(); ++i) {
      turn();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done();
  }
  /// Turns in which all that can happen does.
  void rest() {
    for (int i = 0; i < 100; ++i) {
      turn();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  bool ready() const {
    return std::ranges::all_of(lanes, [](const auto& lane) { return lane->ready(); });
  }

  std::vector<std::unique_ptr<DeviceLane>> lanes;
  std::vector<Told> told;

 private:
  std::map<std::pair<Rank, Rank>, std::deque<Bytes>> words_;
};

struct Way {
  std::string name;
  Mesh::Make make;
};

class LaneConformance : public testing::TestWithParam<Way> {};

Bytes pattern(std::uint64_t id, std::size_t bytes) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(id * 37 + i * (id % 7 + 1));
  return made;
}

TEST_P(LaneConformance, BodiesMeetInOrderWhateverTheOrderOfTheRest) {
  for (const Rank size : {2U, 3U, 5U}) {
    SCOPED_TRACE(size);
    std::mt19937 generator(size);
    const auto random = [&] { return static_cast<Rank>(generator()); };
    Mesh mesh(size, GetParam().make);
    ASSERT_TRUE(mesh.until([&] { return mesh.ready(); })) << mesh.lanes[0]->refusal();
    struct Body {
      Rank from, to;
      bool is_wanted;
      std::unique_ptr<Memory> source, target;
    };
    std::vector<Body> bodies;
    std::vector<std::pair<std::uint64_t, bool>> order;  // of sends and accepts
    std::map<std::pair<Rank, Rank>, std::pair<std::deque<std::uint64_t>, std::deque<std::uint64_t>>> of_pair;
    for (std::uint64_t id = 0; id < 40; ++id) {
      const Rank from = random() % size;
      const Rank to = (from + 1 + random() % (size - 1)) % size;
      const std::size_t bytes = id % 9 == 0 ? 0 : 1 + random() % 100'000;
      bodies.push_back({from, to, random() % 6 != 0, std::make_unique<Memory>(bytes), std::make_unique<Memory>(bytes)});
      bodies.back().source->write(pattern(id, bytes));
      bodies.back().target->write(Bytes(bytes, std::byte{0xEE}));
      of_pair[{from, to}].first.push_back(id);
      of_pair[{from, to}].second.push_back(id);
      order.emplace_back(id, true);
      order.emplace_back(id, false);
    }
    std::shuffle(order.begin(), order.end(), generator);
    for (const auto& [drawn, is_send] : order) {
      const Body& like = bodies[drawn];
      auto& queue = is_send ? of_pair[{like.from, like.to}].first : of_pair[{like.from, like.to}].second;
      const std::uint64_t id = queue.front();  // of one pair they come in their order
      queue.pop_front();
      const Body& body = bodies[id];
      if (is_send) {
        mesh.lanes[body.from]->send(body.to, body.source->ref(), id);
      } else {
        MemoryRef target = body.target->ref();
        if (!body.is_wanted) target.data = nullptr;
        mesh.lanes[body.to]->accept(body.from, target, id);
      }
      if (random() % 3 == 0) mesh.turn();
    }
    const auto count = [&](auto member) {
      std::size_t all = 0;
      for (const Told& told : mesh.told) all += (told.*member).size();
      return all;
    };
    EXPECT_TRUE(
        mesh.until([&] { return count(&Told::sent) == bodies.size() && count(&Told::bodies) == bodies.size(); }));
    for (std::uint64_t id = 0; id < bodies.size(); ++id) {
      const Body& body = bodies[id];
      const std::size_t bytes = body.source->ref().bytes;
      EXPECT_EQ(body.target->read(), body.is_wanted ? pattern(id, bytes) : Bytes(bytes, std::byte{0xEE})) << id;
      EXPECT_EQ(std::ranges::count(mesh.told[body.from].sent, id), 1);
      EXPECT_EQ(std::ranges::count(mesh.told[body.to].bodies, id), 1);
    }
    for (const auto& lane : mesh.lanes) EXPECT_FALSE(lane->moving());
  }
}

TEST_P(LaneConformance, AnUnacceptedBodyHoldsBackNothing) {
  Mesh mesh(3, GetParam().make);
  ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
  const Memory one(1000), two(1000), here(1000), there(1000);
  one.write(pattern(1, 1000));
  two.write(pattern(2, 1000));
  mesh.lanes[0]->send(1, one.ref(), 1);
  mesh.rest();
  EXPECT_FALSE(mesh.lanes[0]->moving()) << "the device has something to do for a body that nobody wants yet";
  mesh.lanes[0]->send(2, two.ref(), 2);
  mesh.lanes[2]->accept(0, here.ref(), 3);
  EXPECT_TRUE(mesh.until([&] { return !mesh.told[2].bodies.empty(); }));
  EXPECT_EQ(here.read(), pattern(2, 1000));
  EXPECT_TRUE(mesh.told[1].bodies.empty());
  mesh.lanes[1]->accept(0, there.ref(), 4);
  EXPECT_TRUE(mesh.until([&] { return !mesh.told[1].bodies.empty(); }));
  EXPECT_EQ(there.read(), pattern(1, 1000));
}

TEST_P(LaneConformance, ABodyIsThereWhenItIsReportedAndNotBefore) {
  Mesh mesh(2, GetParam().make);
  ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
  standin_delay_copies_between(30);
  standin_nccl_delay(30);
  const Memory source(5000), target(5000);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    source.write(pattern(id, 5000));
    mesh.lanes[1]->accept(0, target.ref(), id);
    mesh.lanes[0]->send(1, source.ref(), id);
    EXPECT_TRUE(mesh.until([&] { return mesh.told[1].bodies.size() == id; }));
    EXPECT_EQ(target.read(), pattern(id, 5000));
    EXPECT_TRUE(mesh.until([&] { return mesh.told[0].sent.size() == id; }));
  }
  standin_delay_copies_between(0);
  standin_nccl_delay(0);
}

TEST_P(LaneConformance, ALostDeviceIsAFailureAndNoException) {
  Mesh mesh(2, GetParam().make);
  ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
  const Memory source(100), target(100);
  standin_lose_device(1);
  mesh.lanes[1]->accept(0, target.ref(), 1);
  mesh.lanes[0]->send(1, source.ref(), 1);
  EXPECT_TRUE(mesh.until([&] { return !mesh.lanes[1]->failure().empty() || !mesh.lanes[0]->failure().empty(); }));
  standin_lose_device(0);
}

TEST_P(LaneConformance, WhatNobodyWantsIsReportedThoughNothingRings) {
  Mesh mesh(2, GetParam().make);
  ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
  const Memory source(100);
  mesh.lanes[0]->send(1, source.ref(), 1);
  mesh.rest();
  mesh.lanes[1]->accept(0, {nullptr, 100, MemoryKind::device}, 2);
  EXPECT_TRUE(mesh.lanes[1]->moving()) << "whoever makes progress sleeps before it asks";
  mesh.lanes[1]->poll(mesh.told[1]);
  EXPECT_EQ(mesh.told[1].bodies, std::vector<std::uint64_t>{2});
  EXPECT_FALSE(mesh.lanes[1]->moving());
}

const Way kIpc{"Ipc", [](Rank rank, Rank size) -> std::unique_ptr<DeviceLane> {
                 return std::make_unique<ipc::IpcLane>(0, LaneWorld{rank, size}, [] {});
               }};

const Way kNccl{"Nccl", [](Rank rank, Rank size) -> std::unique_ptr<DeviceLane> {
                  setenv("CASYNC_NCCL", STANDIN_NCCL, 1);
                  return std::make_unique<nccl::NcclLane>(0, LaneWorld{rank, size}, nccl::NcclLane::Options{}, [] {});
                }};

std::string name_of_way(const testing::TestParamInfo<Way>& way) { return way.param.name; }

INSTANTIATE_TEST_SUITE_P(Lanes, LaneConformance, testing::Values(kIpc, kNccl), name_of_way);

TEST(IpcLane, WhereOneDeviceIsOutOfReachNobodyHasIt) {
  standin_fail("cuIpcOpenMemHandle_v2", 3, 217);
  driver();
  Mesh mesh(3, kIpc.make);
  mesh.rest();
  standin_fail("cuIpcOpenMemHandle_v2", 0, 0);
  int refusals = 0;
  for (const auto& lane : mesh.lanes) {
    EXPECT_FALSE(lane->ready());
    EXPECT_TRUE(lane->failure().empty()) << "what goes on without the lane is no failure";
    refusals += !lane->refusal().empty();
  }
  EXPECT_EQ(refusals, 3) << "each rank can say why";
}

TEST(IpcLane, ACloseWaitsNoLongerThanItsPatience) {
  const Memory source(100), target(100);
  standin_delay_copies_between(2000);
  {
    Mesh mesh(2, kIpc.make);
    ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
    mesh.lanes[1]->accept(0, target.ref(), 1);
    mesh.lanes[0]->send(1, source.ref(), 2);
    ASSERT_TRUE(mesh.until([&] { return mesh.lanes[0]->moving(); }));
    const auto begun = std::chrono::steady_clock::now();
    mesh.lanes[0]->close(20'000'000);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1500));
  }
  standin_delay_copies_between(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // the copy ends while its memory is there
}

TEST(IpcLane, TheNextLaneHasTheLandingsOfTheLast) {
  std::size_t before = 0;
  for (int round = 0; round < 3; ++round) {
    Mesh mesh(2, kIpc.make);
    ASSERT_TRUE(mesh.until([&] { return mesh.ready(); }));
    const Memory source(1 << 20), target(1 << 20);
    mesh.lanes[0]->send(1, source.ref(), 1);
    mesh.lanes[1]->accept(0, target.ref(), 2);
    EXPECT_TRUE(mesh.until([&] { return !mesh.told[1].bodies.empty() && !mesh.told[0].sent.empty(); }));
    if (round == 0) before = standin_device_bytes();
    EXPECT_EQ(standin_device_bytes(), before);
  }
}

}  // namespace
}  // namespace casync
