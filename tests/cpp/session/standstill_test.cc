// A run that has begun and stands still is reported, and ends with an error on every rank; one that moves never does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr std::int64_t kNumel = 1'000'000;

/// Passes everything on, but bodies to rank 0: they come `after` they were accepted. Meanwhile `trickles` of their
/// bytes come, or none.
class Stream final : public Transport {
 public:
  Stream(std::shared_ptr<Transport> inner, Nanoseconds after, bool trickles)
      : inner_(std::move(inner)), after_(after), trickles_(trickles) {}

  Rank rank() const override { return inner_->rank(); }
  Rank size() const override { return inner_->size(); }
  std::size_t head_bytes() const override { return inner_->head_bytes(); }
  void send_head(Rank peer, std::vector<std::byte>&& head) override { inner_->send_head(peer, std::move(head)); }
  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    inner_->send_body(peer, body, id);
  }
  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override {
    if (rank() != 0) return inner_->accept(peer, body, id);
    const std::lock_guard lock(mutex_);
    held_.push_back({std::chrono::steady_clock::now() + std::chrono::nanoseconds(after_), peer, body, id});
  }
  bool poll(TransportSink& sink) override {
    const auto now = std::chrono::steady_clock::now();
    while (!held_.empty() && held_.front().due <= now) {
      inner_->accept(held_.front().peer, held_.front().body, held_.front().id);
      held_.erase(held_.begin());
    }
    if (trickles_ && !held_.empty()) ++flowed_;
    return inner_->poll(sink);
  }
  std::optional<std::uint64_t> flowed(Rank /*peer*/) const override { return flowed_; }
  bool moving() const override { return inner_->moving(); }
  void wait(Nanoseconds timeout) override { inner_->wait(std::min(timeout, 50 * kMillisecond)); }
  void wake() override { inner_->wake(); }
  bool wakes() const override { return inner_->wakes(); }
  const TransportCounters& counters() const override { return inner_->counters(); }
  void flush(Nanoseconds timeout) override { inner_->flush(timeout); }
  void close(Nanoseconds patience) override { inner_->close(patience); }

 private:
  struct Held {
    std::chrono::steady_clock::time_point due;
    Rank peer;
    std::span<std::byte> body;
    std::uint64_t id;
  };
  std::shared_ptr<Transport> inner_;
  Nanoseconds after_;
  bool trickles_;
  std::mutex mutex_;
  std::vector<Held> held_;
  std::uint64_t flowed_ = 0;
};

Signature signature() {
  Signature signature;
  signature.shape = {kNumel, 1};
  signature.compression = "none";
  signature.topology = "direct";
  return signature;
}

/// Two ranks reduce one tensor over such a stream. What each one's operation raised, and what was logged.
struct Outcome {
  std::vector<std::string> errors{std::vector<std::string>(2)};
  std::vector<std::string> logged;
};
Outcome reduce_over(Nanoseconds after, bool trickles) {
  Outcome outcome;
  std::mutex mutex;
  spawn(
      2,
      [&](Session& session) {
        std::vector<float> values(kNumel, 1.0F);
        try {
          run(session, session.define("w", signature(), "standstill_test.cc"), values.data(), values.data());
        } catch (const PeerFailure& error) {
          outcome.errors[static_cast<std::size_t>(session.rank())] = error.what();
        }
      },
      [](int, SessionOptions& options) {
        options.stall_warning_s = 0.6;
        options.timeout_s = 2;
      },
      [&](std::shared_ptr<Transport> inner) { return std::make_shared<Stream>(std::move(inner), after, trickles); },
      [&](const LogRecord& record) {
        const std::lock_guard lock(mutex);
        outcome.logged.push_back(record.text);
      });
  return outcome;
}

TEST(Standstill, IsReportedAndThenEndsOnEveryRank) {
  const Outcome outcome = reduce_over(3'600'000 * kMillisecond, false);
  for (const std::string& error : outcome.errors) {
    EXPECT_NE(error.find("tensor w has begun, and nothing of it has moved for 2 s"), std::string::npos) << error;
    EXPECT_NE(error.find("CASYNC_TIMEOUT_SECONDS"), std::string::npos) << error;
  }
  const auto tells = [](const std::string& text) {
    return text.find("a message of partition") != std::string::npos && text.find("rank") != std::string::npos;
  };
  EXPECT_GE(std::ranges::count_if(outcome.logged, tells), 1) << outcome.logged.size();
}

TEST(Standstill, WhatMovesSlowlyIsNeverEnded) {
  const Outcome outcome = reduce_over(5'000 * kMillisecond, true);
  EXPECT_EQ(outcome.errors, std::vector<std::string>(2));
}

}  // namespace
}  // namespace casync
