// What goes over a socket, as bytes: cut anywhere, in any order of streams, accepted at any time.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "casync/error.hpp"
#include "conformance.hpp"
#include "transport/tcp/bodies_in.hpp"
#include "transport/tcp/bodies_out.hpp"
#include "transport/tcp/heads.hpp"

namespace casync::transport::test {
namespace {

using Bytes = std::vector<std::byte>;
using tcp::Arrived;
using tcp::BodiesIn;
using tcp::BodiesOut;
using tcp::Chunk;
using tcp::FrameKind;
using tcp::HeadsIn;
using tcp::HeadsOut;
using tcp::StreamIn;
using tcp::StreamOut;

/// One peer's streams between a sender and a receiver, whose bytes lie on the way until they are moved.
class Wires {
 public:
  Wires(std::size_t streams, std::size_t chunk_bytes, unsigned seed)
      : random_(seed), bodies_out_(chunk_bytes), out_(streams), in_(streams), wire_(streams), scratch_(1 << 12) {}

  void send(std::span<const std::byte> memory, std::uint64_t id) { bodies_out_.add(memory, id); }
  void accept(std::span<std::byte> memory, std::uint64_t id) { bodies_in_.accept(memory, id); }

  /// Something happens on a stream: bytes leave, or arrive.
  void step() {
    const std::size_t stream = random_() % out_.size();
    if (random_() % 2 == 0) {
      leave(stream);
    } else {
      arrive(stream);
    }
  }

  bool idle() const {
    return bodies_out_.empty() && std::all_of(wire_.begin(), wire_.end(), [](const auto& w) { return w.empty(); });
  }

  std::vector<std::uint64_t> sent;
  std::vector<Arrived> arrived;

 private:
  void leave(std::size_t stream) {
    StreamOut& out = out_[stream];
    if (out.empty()) out.take(bodies_out_);
    if (out.empty()) return;
    Bytes gathered;
    for (const iovec& part : out.gather()) {
      const auto* bytes = static_cast<const std::byte*>(part.iov_base);
      gathered.insert(gathered.end(), bytes, bytes + part.iov_len);
    }
    const std::size_t count = 1 + random_() % gathered.size();
    wire_[stream].insert(wire_[stream].end(), gathered.begin(), gathered.begin() + static_cast<std::ptrdiff_t>(count));
    std::vector<Chunk> whole;
    out.sent(count, whole);
    for (const Chunk& chunk : whole) {
      if (const auto id = bodies_out_.sent(chunk)) sent.push_back(*id);
    }
  }

  void arrive(std::size_t stream) {
    StreamIn& in = in_[stream];
    if (in.is_held() && !in.resume(bodies_in_, arrived)) return;
    std::deque<std::byte>& wire = wire_[stream];
    const std::size_t room = in.rest().size() + scratch_.size();
    const std::size_t count = std::min({wire.size(), room, std::size_t{1} + random_() % 5000});
    if (count == 0) return;
    const std::size_t direct = std::min(count, in.rest().size());
    std::copy_n(wire.begin(), direct, in.rest().begin());
    std::copy_n(wire.begin() + static_cast<std::ptrdiff_t>(direct), count - direct, scratch_.begin());
    wire.erase(wire.begin(), wire.begin() + static_cast<std::ptrdiff_t>(count));
    in.received(count, scratch_, bodies_in_, arrived);
  }

  std::mt19937 random_;
  BodiesOut bodies_out_;
  BodiesIn bodies_in_;
  std::vector<StreamOut> out_;
  std::vector<StreamIn> in_;
  std::vector<std::deque<std::byte>> wire_;
  Bytes scratch_;
};

class TcpBodies : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(TcpBodies, ArriveWholeHoweverTheyAreCut) {
  const auto [streams, chunk_bytes] = GetParam();
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Wires wires(streams, chunk_bytes, seed);
    std::vector<Bytes> out, in;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const std::size_t bytes = random() % 3 == 0 ? random() % 3 : random() % 9000;
      out.push_back(pattern(0, 1, i, bytes));
      in.emplace_back(bytes);
    }
    std::size_t sent = 0, accepted = 0;
    for (int step = 0; step < 1'000'000 && (wires.arrived.size() < out.size() || !wires.idle()); ++step) {
      if (sent < out.size() && random() % 8 == 0) {
        wires.send(out[sent], sent);
        ++sent;
      }
      if (accepted < in.size() && random() % 16 == 0) {
        wires.accept(in[accepted], accepted);
        ++accepted;
      }
      wires.step();
    }
    ASSERT_EQ(wires.arrived.size(), out.size()) << "seed " << seed;
    EXPECT_EQ(std::set(wires.sent.begin(), wires.sent.end()).size(), out.size());
    std::set<std::uint64_t> ids;
    for (const Arrived& body : wires.arrived) {
      ids.insert(body.id);
      EXPECT_EQ(body.bytes, out[body.id].size());
    }
    EXPECT_EQ(ids.size(), out.size());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(in[i] == out[i]) << "seed " << seed << ", body " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, TcpBodies,
                         testing::Combine(testing::Values(1, 2, 5), testing::Values(1, 700, std::size_t{1} << 40)));

TEST(TcpBodiesIn, RefuseWhatDoesNotFit) {
  BodiesIn bodies;
  Bytes memory(100);
  EXPECT_FALSE(bodies.place({.body = 0, .whole = 100, .offset = 0, .bytes = 100}));
  bodies.accept(memory, 1);
  EXPECT_THROW(bodies.place({.body = 0, .whole = 99, .offset = 0, .bytes = 99}), CorruptPayload);
  EXPECT_THROW(bodies.place({.body = 0, .whole = 100, .offset = 50, .bytes = 51}), CorruptPayload);
  EXPECT_THROW(bodies.place({.body = 0, .whole = 100, .offset = 101, .bytes = 0}), CorruptPayload);
  EXPECT_THROW(bodies.place({.body = 0, .whole = 100, .offset = ~std::uint64_t{0}, .bytes = 2}), CorruptPayload);
  const Chunk most{.body = 0, .whole = 100, .offset = 0, .bytes = 60};
  ASSERT_TRUE(bodies.place(most));
  EXPECT_FALSE(bodies.arrived(most));
  EXPECT_THROW(bodies.place(most), CorruptPayload) << "more than is missing";
  const Chunk rest{.body = 0, .whole = 100, .offset = 60, .bytes = 40};
  ASSERT_TRUE(bodies.place(rest));
  EXPECT_TRUE(bodies.arrived(rest));
  EXPECT_THROW(bodies.place(rest), CorruptPayload) << "of a body that is complete";
}

TEST(TcpHeads, ArriveWholeHoweverTheyAreCut) {
  std::mt19937 random(3);
  HeadsOut out;
  std::vector<Bytes> heads;
  for (std::uint64_t i = 0; i < 200; ++i) {
    heads.push_back(pattern(0, 1, i, i % 7 == 0 ? host::kHeadBytes - i : random() % 200));
    out.add(FrameKind::head, heads.back());
  }
  out.add(FrameKind::bell);
  out.add(FrameKind::goodbye);
  HeadsIn in;
  std::vector<Bytes> got;
  std::vector<FrameKind> kinds;
  while (!out.waiting().empty()) {
    const auto room = in.room();
    ASSERT_FALSE(room.empty());
    const std::size_t count = std::min({room.size(), out.waiting().size(), std::size_t{1} + random() % 40'000});
    std::copy_n(out.waiting().begin(), count, room.begin());
    in.received(count);
    out.sent(count);
    while (const auto frame = in.next()) {
      kinds.push_back(frame->kind);
      if (frame->kind == FrameKind::head) got.emplace_back(frame->bytes.begin(), frame->bytes.end());
    }
  }
  EXPECT_TRUE(got == heads);
  ASSERT_EQ(kinds.size(), heads.size() + 2);
  EXPECT_EQ(kinds[heads.size()], FrameKind::bell);
  EXPECT_EQ(kinds.back(), FrameKind::goodbye);
}

}  // namespace
}  // namespace casync::transport::test
