#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "casync/transport.hpp"
#include "executor/driver.hpp"
#include "peer_frames.hpp"
#include "planner/tune/measured_planning.hpp"
#include "session/stand_ins.hpp"

namespace casync::fuzz {

/// How often what happened, over any number of inputs.
class Seen final : public Observer {
 public:
  void on_event(const Event& event, Nanoseconds now) override;
  void on_decide(Nanoseconds /*now*/) override {}
  void on_action(const Action& /*action*/) override {}

  std::map<ControlKind, int> heard;  ///< control messages that came
};

/// Keeps what is to be received, and takes what is sent for sent.
class Wire final : public Transport {
 public:
  explicit Wire(casync::Rank rank) : rank_(rank) {}

  casync::Rank rank() const override { return rank_; }
  casync::Rank size() const override { return kSize; }
  std::size_t head_bytes() const override { return kHeadBytes; }
  void send_head(casync::Rank peer, std::vector<std::byte>&& head) override;
  void send_body(casync::Rank peer, std::span<const std::byte> body, std::uint64_t id) override;
  void accept(casync::Rank peer, std::span<std::byte> body, std::uint64_t id) override;
  bool poll(TransportSink& sink) override;
  bool moving() const override { return false; }
  void wait(Nanoseconds /*timeout*/) override {}
  void wake() override {}
  bool wakes() const override { return true; }
  const TransportCounters& counters() const override { return counters_; }
  void flush(Nanoseconds /*timeout*/) override {}
  void close(Nanoseconds /*patience*/) override {}

  void frame(casync::Rank peer, PeerFrame frame);
  void head(casync::Rank peer, Bytes bytes);
  /// The bytes of the body that `peer` has to send next, if one is accepted; with `flipped`, not as announced.
  void body(casync::Rank peer, bool flipped);
  void all_sent();
  void down(casync::Rank peer);

 private:
  struct Accepted {
    casync::Rank peer;
    std::span<std::byte> memory;
    std::uint64_t id;
  };
  casync::Rank rank_;
  std::vector<std::function<void(TransportSink&)>> news_;
  std::deque<Accepted> accepted_;
  std::array<std::deque<Bytes>, kSize> announced_;  // bodies, per peer
  std::vector<std::uint64_t> sent_;
  std::array<bool, kSize> down_{};
  TransportCounters counters_;
};

/// Computes when told to. What a codec costs here is not asked: it takes its time, and no peer's bytes come into it.
class Processor final : public Workers {
 public:
  void run(std::vector<std::unique_ptr<Job>> batch) override;
  void compute(Driver& driver);
  bool idle() const { return jobs_.empty(); }

 private:
  std::vector<std::unique_ptr<Job>> jobs_;
};

/// A rank whose peers are the fuzzer.
class Rank {
 public:
  Rank(casync::Rank rank, const std::string& coordinator, Seen& seen);

  void submit(std::size_t tensor);
  void turn();
  void pass(Nanoseconds time) { now_ += time; }
  void shutdown() { driver_->shutdown(); }
  /// A peer that is gone ends the session, and then nothing is left.
  void end();
  Wire& wire() { return wire_; }
  bool failed() const { return engine_.failed(); }

 private:
  static EngineOptions options(casync::Rank rank);
  static MeasuredPlanning::Options planning_options();
  std::uint32_t define(Definition definition);
  void stand_in(const Request& wanted);
  void tell_definitions();
  void ended(Operation& operation);
  void end_of_program(const Operation& operation);

  Wire wire_;
  Processor processor_;
  Engine engine_;
  MeasuredPlanning planning_;
  std::optional<Driver> driver_;
  std::deque<Definition> definitions_;
  std::array<Bytes, kTensorCount> memory_;
  std::array<Operation, kTensorCount> operations_;
  std::array<bool, kTensorCount> outstanding_{};
  StandIns stand_ins_;
  std::uint32_t told_ = 0;                                    // definitions that the driver knows
  std::vector<std::pair<std::uint32_t, Operation*>> wanted_;  // stand-ins, not submitted yet
  Nanoseconds now_ = 0;
};

/// What the target does with one input.
void play(Input input, Seen& seen);

}  // namespace casync::fuzz
