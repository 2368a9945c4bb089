#include <algorithm>
#include <chrono>
#include <cstring>

#include "conformance.hpp"

namespace casync::transport::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::byte> barrier_head() {
  const auto text = std::as_bytes(std::span(std::string_view("barrier of the conformance suite")));
  return {text.begin(), text.end()};
}

bool is_barrier(const std::vector<std::byte>& head) { return head == barrier_head(); }

}  // namespace

std::vector<casync::Rank> Rank::peers() const {
  std::vector<casync::Rank> all;
  for (casync::Rank peer = 0; peer < size(); ++peer) {
    if (peer != rank()) all.push_back(peer);
  }
  return all;
}

bool Rank::until(const std::function<bool()>& done, Nanoseconds timeout) {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout);
  while (!done()) {
    const Nanoseconds left = std::chrono::nanoseconds(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (transport->poll(told)) continue;
    const bool sleep = transport->wakes() && !transport->moving();
    transport->wait(std::min(left, sleep ? 50 * kMillisecond : kMillisecond / 10));
  }
  return true;
}

void Rank::idle(Nanoseconds duration) {
  until([] { return false; }, duration);
}

void Rank::barrier() {
  for (const casync::Rank peer : peers()) transport->send_head(peer, barrier_head());
  const auto everyone = [this] {
    for (auto& [peer, heads] : told.heads) {
      barrier_heads_[peer] += static_cast<int>(std::erase_if(heads, is_barrier));
    }
    for (const casync::Rank peer : peers()) {
      if (barrier_heads_[peer] == 0) return false;
    }
    return true;
  };
  ASSERT_TRUE(until(everyone)) << "rank " << rank() << " waits at a barrier";
  for (const casync::Rank peer : peers()) --barrier_heads_[peer];
}

void Rank::close() {
  closed_ = true;
  transport->close(5 * kSecond);
}

void Rank::finish() {
  if (closed_) return;
  barrier();
  close();
}

std::vector<std::byte> pattern(casync::Rank from, casync::Rank to, std::uint64_t index, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  std::uint64_t state = static_cast<std::uint64_t>(from * 1009 + to) * 0x9E3779B97F4A7C15u + index;
  for (std::size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<std::byte>(state >> 56);
  }
  return out;
}

}  // namespace casync::transport::test
