// A connection of the virtual network: what comes late waits behind what was sent before it, as over TCP.
#include <gtest/gtest.h>

#include "executor/virtual/network.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;

/// When what arrived.
class Times final : public TransportSink {
 public:
  explicit Times(const Agenda& agenda) : agenda_(agenda) {}
  void on_head(Rank /*peer*/, std::span<const std::byte> /*head*/) override { head = agenda_.now(); }
  void on_sent(std::uint64_t /*id*/) override { sent = agenda_.now(); }
  void on_body(std::uint64_t /*id*/) override { body = agenda_.now(); }
  void on_peer_down(Rank /*peer*/, std::string_view /*why*/) override {}

  std::optional<Nanoseconds> head, sent, body;

 private:
  const Agenda& agenda_;
};

/// Two hosts with links of 100 MB/s: a body of 1 MB takes 10 ms.
class Pair {
 public:
  explicit Pair(std::optional<Connection> connection)
      : network_(agenda_, {.host_of = {0, 1}, .between = {1e8, 0}, .connection = connection, .copies = false},
                 [](Rank, bool) {}) {}

  void send_body(Rank from) {
    network_.transport(1 - from).accept(from, body_, 1);
    network_.transport(from).send_body(1 - from, body_, 1);
  }
  void send_head(Rank from) { network_.transport(from).send_head(1 - from, std::vector<std::byte>(100)); }
  void step() { agenda_.next(); }
  void run() {
    while (agenda_.next()) {
      for (const Rank rank : {0U, 1U}) network_.transport(rank).poll(at[rank]);
    }
  }

 private:
  Agenda agenda_{1};
  std::vector<std::byte> body_ = std::vector<std::byte>(1'000'000);
  VirtualNetwork network_;

 public:
  std::array<Times, 2> at{Times(agenda_), Times(agenda_)};
};

constexpr Connection kEager{.buffer_bytes = 4 << 20, .eager_bytes = 2 << 20};
constexpr Connection kAnswered{.buffer_bytes = 4 << 20, .eager_bytes = 1 << 10};

TEST(Connections, WithoutOneAHeadPassesTheBody) {
  Pair pair(std::nullopt);
  pair.send_body(0);
  pair.send_head(0);
  pair.run();
  EXPECT_LT(pair.at[1].head, kMillisecond);
  EXPECT_GE(pair.at[0].sent, 10 * kMillisecond);
}

TEST(Connections, AHeadWaitsBehindTheBodyBeforeIt) {
  Pair pair(kEager);
  pair.send_body(0);
  pair.send_head(0);
  pair.send_head(1);
  pair.run();
  EXPECT_GE(pair.at[1].head, 10 * kMillisecond);
  EXPECT_LT(pair.at[0].head, kMillisecond) << "the other way nothing is before it";
}

TEST(Connections, ABodyThatTheConnectionHasTakenIsSent) {
  Pair pair(kEager);
  pair.send_body(0);
  pair.run();
  EXPECT_LT(pair.at[0].sent, kMillisecond);
  EXPECT_GE(pair.at[1].body, 10 * kMillisecond);
}

/// Rank 1's answer goes the way of the body that rank 1 has begun to send before.
TEST(Connections, ALongBodyWaitsForAnAnswerThatWaitsBehindOthers) {
  Pair alone(kAnswered);
  alone.send_body(0);
  alone.run();
  EXPECT_LT(alone.at[1].body, 11 * kMillisecond);
  Pair both(kAnswered);
  both.send_body(1);
  both.step();  // its answer has come
  both.send_body(0);
  both.run();
  EXPECT_LT(both.at[0].body, 11 * kMillisecond);
  EXPECT_GE(both.at[1].body, 20 * kMillisecond);
}

}  // namespace
}  // namespace casync
