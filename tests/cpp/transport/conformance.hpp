#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casync/transport.hpp"

/// What every transport must do, written once from the view of one rank. A transport instantiates the suite with its
/// worlds:
///   INSTANTIATE_TEST_SUITE_P(Local, TransportConformance, testing::Values(local_world(3)), world_name);
namespace casync::transport::test {

inline constexpr Nanoseconds kMillisecond = 1'000'000;
inline constexpr Nanoseconds kSecond = 1'000'000'000;

/// Remembers what was reported.
class Recorder : public TransportSink {
 public:
  void on_head(casync::Rank peer, std::span<const std::byte> head) override {
    heads[peer].emplace_back(head.begin(), head.end());
  }
  void on_sent(std::uint64_t id) override { sent.push_back(id); }
  void on_body(std::uint64_t id) override { bodies.push_back(id); }
  void on_peer_down(casync::Rank peer, std::string_view why) override { downs.emplace_back(peer, why); }

  std::map<casync::Rank, std::vector<std::vector<std::byte>>> heads;
  std::vector<std::uint64_t> sent;
  std::vector<std::uint64_t> bodies;
  std::vector<std::pair<casync::Rank, std::string>> downs;
};

/// One rank during a test: its transport, what it was told, and the loop every test needs.
class Rank {
 public:
  explicit Rank(std::unique_ptr<Transport> connected) : transport(std::move(connected)) {}

  casync::Rank rank() const { return transport->rank(); }
  casync::Rank size() const { return transport->size(); }
  casync::Rank next() const { return (rank() + 1) % size(); }
  casync::Rank previous() const { return (rank() + size() - 1) % size(); }
  std::vector<casync::Rank> peers() const;

  /// Polls, sleeping in between as an executor would, until `done` holds; false after `timeout`.
  bool until(const std::function<bool()>& done, Nanoseconds timeout = 50 * kSecond);
  /// Polls for `duration`, whatever happens.
  void idle(Nanoseconds duration);
  /// Every rank has come here; heads received since the last barrier stay in `told.heads`, those of barriers do not.
  void barrier();
  void close();
  /// Unless the test has closed: a last barrier, then close.
  void finish();

  std::unique_ptr<Transport> transport;
  Recorder told;

 private:
  std::map<casync::Rank, int> barrier_heads_;  ///< arrived ahead of our own barrier
  bool closed_ = false;
};

/// Where a test runs: `run` executes `body` once per rank that lives in this process, each with a fresh transport, and
/// finishes it. Every process of the world calls it.
class World {
 public:
  virtual ~World() = default;
  virtual casync::Rank size() const = 0;
  virtual bool same_host() const { return true; }
  virtual void run(const std::function<void(Rank&)>& body) = 0;
  /// `first` and `second` are of different sessions with the same ranks, connected in opposite order by odd ranks.
  virtual void run_two(const std::function<void(Rank& first, Rank& second)>& body) = 0;
};

std::vector<std::byte> pattern(casync::Rank from, casync::Rank to, std::uint64_t index, std::size_t bytes);

class TransportConformance : public testing::TestWithParam<std::shared_ptr<World>> {};

inline std::string world_name(const testing::TestParamInfo<std::shared_ptr<World>>& info) {
  return "Of" + std::to_string(info.param->size());
}

}  // namespace casync::transport::test
