// A bulk: what goes in as several messages comes out as the same messages, or as an error that says why it does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "casync/error.hpp"
#include "executor/frames/framer.hpp"
#include "executor/virtual/world.hpp"

namespace casync {
namespace {

std::vector<std::byte> bytes_of_length(std::size_t length, int first) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return bytes;
}

/// Keeps what is sent, and where what is received goes.
class GradientState final : public Transport {
 public:
  struct Accepted {
    std::span<std::byte> memory;
    std::uint64_t id;
  };
  Rank rank() const override { return 0; }
  Rank size() const override { return 2; }
  std::size_t head_bytes() const override { return 4096; }
  void send_head(Rank /*peer*/, std::vector<std::byte>&& head) override { heads.push_back(std::move(head)); }
  void send_body(Rank /*peer*/, std::span<const std::byte> body, std::uint64_t id) override {
    bodies.emplace_back(body.begin(), body.end());
    ids.push_back(id);
  }
  void accept(Rank /*peer*/, std::span<std::byte> body, std::uint64_t id) override { accepted.push_back({body, id}); }
  bool poll(TransportSink& /*sink*/) override { return false; }
  bool moving() const override { return false; }
  void wait(Nanoseconds /*timeout*/) override {}
  void wake() override {}
  bool wakes() const override { return true; }
  const TransportCounters& counters() const override { return counters_; }
  void flush(Nanoseconds /*timeout*/) override {}
  void close(Nanoseconds /*patience*/) override {}

  std::vector<std::vector<std::byte>> heads;
  std::vector<std::vector<std::byte>> bodies;
  std::vector<std::uint64_t> ids;
  std::vector<Accepted> accepted;

 private:
  TransportCounters counters_;
};

/// Places messages with even tags at once, and keeps the others for later.
class Receiver final : public Framer::Receiver {
 public:
  explicit Receiver(Framer& framer) : framer_(framer) {}
  void on_control(Rank /*peer*/, std::span<const std::byte> message) override {
    controls.emplace_back(message.begin(), message.end());
  }
  void on_lane(Rank /*peer*/, std::span<const std::byte> /*message*/) override { FAIL(); }
  void on_message(Rank /*peer*/, const MessageKey& key, std::uint64_t message_id) override {
    if (key.tag % 2 != 0) {
      later.emplace_back(key.tag, message_id);
    } else {
      place(key.tag, message_id);
    }
  }
  void on_placed(std::uint64_t id, std::size_t bytes) override { placed[id].resize(bytes); }
  void on_corrupt(Rank /*peer*/, std::string_view why, std::optional<std::uint64_t> /*id*/) override { corrupt = why; }

  void place(std::uint32_t tag, std::uint64_t message_id) {
    placed[tag].resize(1000);
    framer_.place(message_id, {placed[tag].data(), placed[tag].size()}, false, tag, *this);
  }

  std::vector<std::pair<std::uint32_t, std::uint64_t>> later;
  std::map<std::uint64_t, std::vector<std::byte>> placed;
  std::vector<std::vector<std::byte>> controls;
  std::string corrupt;

 private:
  Framer& framer_;
};

class Bulk : public testing::Test {
 protected:
  /// Messages 0, 1 and 2, of which 1 is encoded, have left as one body and their announcement has arrived.
  void SetUp() override {
    sender_.add_to_bulk({0, 0, 0}, bytes_of_length(100, 0), false, 10);
    sender_.add_to_bulk({0, 0, 1}, bytes_of_length(70, 100), true, 11);
    sender_.add_to_bulk({0, 0, 2}, bytes_of_length(0, 0), false, 12);
    sender_.send_bulk(1);
    ASSERT_EQ(from_.heads.size(), 1U);
    ASSERT_EQ(from_.bodies.size(), 1U);
  }
  void receive() {
    receiver_framer_.take(1, from_.heads[0], receiver_);
    ASSERT_EQ(to_.accepted.size(), 1U);
    ASSERT_EQ(to_.accepted[0].memory.size(), from_.bodies[0].size());
    std::ranges::copy(from_.bodies[0], to_.accepted[0].memory.begin());
    receiver_framer_.received(to_.accepted[0].id, receiver_);
  }

  GradientState from_;
  GradientState to_;
  Framer sender_{from_, 5, true};
  Framer receiver_framer_{to_, 5, true};
  Receiver receiver_{receiver_framer_};
};

TEST(Control, ALongMessageGoesInSeveralHeads) {
  GradientState from;
  GradientState to;
  Framer sender(from, 5, true);
  Framer receiver_framer(to, 5, true);
  Receiver receiver(receiver_framer);
  const std::size_t most = FrameWriter::room(from.head_bytes());
  std::vector<std::vector<std::byte>> messages;
  for (const std::size_t bytes : {std::size_t{1}, most, most + 1, 2 * most, 5 * most - 7, std::size_t{3}})
    messages.push_back(bytes_of_length(bytes, static_cast<int>(bytes)));
  for (const auto& message : messages) sender.control(1, message);
  sender.flush();
  for (const auto& head : from.heads) {
    EXPECT_LE(head.size(), from.head_bytes());
    receiver_framer.take(1, head, receiver);
  }
  EXPECT_EQ(receiver.controls, messages);
}

TEST(Control, WhatNeverEndsIsNotKept) {
  GradientState to;
  Framer receiver_framer(to, 5, true);
  Receiver receiver(receiver_framer);
  const std::vector<std::byte> part(std::size_t{1} << 20);
  FrameWriter writer(5, std::size_t{2} << 20);
  writer.append({.kind = EntryKind::control_part, .size = part.size()}, part);
  const std::vector<std::byte> head = writer.complete();
  for (int megabytes = 0; megabytes < 64; ++megabytes) receiver_framer.take(1, head, receiver);
  EXPECT_THROW(receiver_framer.take(1, head, receiver), CorruptPayload);
  EXPECT_TRUE(receiver.controls.empty());
}

TEST_F(Bulk, ComesApartIntoItsMessages) {
  receive();
  EXPECT_EQ(receiver_.corrupt, "");
  ASSERT_EQ(receiver_.later.size(), 1U);
  receiver_.place(receiver_.later[0].first, receiver_.later[0].second);  // one that came too early
  EXPECT_EQ(receiver_.placed[0], bytes_of_length(100, 0));
  EXPECT_EQ(receiver_.placed[1], bytes_of_length(70, 100));
  EXPECT_EQ(receiver_.placed[2], bytes_of_length(0, 0));
}

TEST_F(Bulk, LeavesAsItsMessages) {
  std::vector<std::uint64_t> left;
  sender_.left(from_.ids[0], [&](std::uint64_t id) { left.push_back(id); });
  EXPECT_EQ(left, (std::vector<std::uint64_t>{10, 11, 12}));
  sender_.left(99, [&](std::uint64_t id) { left.push_back(id); });
  EXPECT_EQ(left.back(), 99U) << "a body of one message is that message";
}

TEST_F(Bulk, AFlippedBitOfAnEncodedMessageIsNoticed) {
  from_.bodies[0][110] ^= std::byte{1};
  receive();
  EXPECT_NE(receiver_.corrupt.find("checksum"), std::string::npos);
}

TEST(BulkFrames, AnAnnouncementThatDoesNotAddUpIsCorrupt) {
  GradientState transport;
  Framer framer(transport, 5, true);
  Receiver receiver(framer);
  const BulkPart part{{0, 0, 0}, 100, 0, 0};
  const auto frame_of = [](std::uint64_t size, std::span<const std::byte> parts) {
    FrameWriter writer(5, 4096);
    writer.append({.kind = EntryKind::bulk, .size = size}, parts);
    return writer.complete();
  };
  const auto parts = std::as_bytes(std::span(&part, 1));
  EXPECT_THROW(framer.take(1, frame_of(101, parts), receiver), CorruptPayload);
  EXPECT_THROW(framer.take(1, frame_of(0, {}), receiver), CorruptPayload);
  EXPECT_THROW(framer.take(1, frame_of(100, parts.first(20)), receiver), CorruptPayload);
  EXPECT_NO_THROW(framer.take(1, frame_of(100, parts), receiver));
}

/// 60 gradients of 64 KiB by PS on three ranks: 120 messages from a rank, and as many heads that announce them.
TEST(BulkWorld, WhatTheGlobalCoordinatorBatchesIsOneBody) {
  const auto messages_with = [](const std::string& policy) {
    VirtualOptions options;
    options.network.host_of = {0, 1, 2};
    options.sizes_only = true;
    options.coordinator.policy = policy;
    VirtualScript script;
    std::vector<Submission> all;
    for (std::uint32_t t = 0; t < 60; ++t) {
      VirtualTensor tensor;
      tensor.name = std::to_string(t);
      tensor.signature.shape = {16'384, 1};
      tensor.plan.codec = "none";
      tensor.plan.topology = "ps";
      tensor.plan.partitions = 1;
      tensor.plan.first_owner = t % 3;
      script.tensors.push_back(tensor);
      all.push_back({t, 0, 0});
    }
    script.steps.assign(1, std::vector<std::vector<Submission>>(3, all));
    VirtualWorld world(options, std::move(script), nullptr);
    EXPECT_FALSE(world.run().hung);
    return world.transport(1).counters().sent_messages;
  };
  const std::uint64_t alone = messages_with("local");
  EXPECT_GT(alone, 80U);
  EXPECT_LT(messages_with("global"), alone / 2);
}

}  // namespace
}  // namespace casync
