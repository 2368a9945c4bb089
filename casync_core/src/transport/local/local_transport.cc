#include "transport/local/local_transport.hpp"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "transport/doorbell.hpp"

namespace casync::transport {
namespace local {

struct SentBody {
  std::span<const std::byte> bytes;
  std::uint64_t id;
};

struct AcceptedBody {
  std::span<std::byte> memory;
  std::uint64_t id;
};

/// What goes from one rank to another. `sent` and `accepted` meet in order.
struct Link {
  std::deque<std::vector<std::byte>> heads;
  std::deque<SentBody> sent;
  std::deque<AcceptedBody> accepted;
  bool down_reported = false;

  bool matched() const { return !sent.empty() && !accepted.empty(); }
};

enum class Presence : std::uint8_t { alive, killed, closed };

struct Seat {
  DoorbellCell bell;
  Presence presence = Presence::alive;
  bool connected = false;
  bool stopped = false;
  int copies = 0;                       ///< copies in progress, outside the lock, that read or write this rank's memory
  std::vector<std::uint64_t> sent_ids;  ///< bodies copied by their receiver, not yet reported
};

/// `mutex` guards everything but the doorbells. No callback and no copy of a body runs under it.
struct State {
  State(Rank n, std::size_t head) : size(n), head_bytes(head), seats(n) { links.resize(seats.size() * seats.size()); }

  Seat& seat(Rank rank) { return seats[rank]; }
  Link& link(Rank from, Rank to) { return links[std::size_t{from} * size + to]; }
  bool gone(Rank rank) { return seat(rank).presence != Presence::alive; }

  void ring_all() {
    for (Seat& seat : seats) ring(seat.bell);
  }

  /// Takes `rank` out: its bodies are dropped on both sides; heads it sent stay deliverable.
  void remove(Rank rank, Presence why) {
    std::unique_lock lock(mutex);
    if (gone(rank)) return;
    seat(rank).presence = why;
    for (Rank peer = 0; peer < size; ++peer) {
      link(rank, peer).sent.clear();
      link(rank, peer).accepted.clear();
      link(peer, rank) = Link{};
    }
    copied.wait(lock, [&] { return seat(rank).copies == 0; });
    ring_all();
  }

  const Rank size;
  const std::size_t head_bytes;
  std::mutex mutex;
  std::condition_variable copied;  ///< some Seat::copies went down
  std::vector<Seat> seats;
  std::vector<Link> links;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<State> state, Rank rank)
      : state_(std::move(state)), rank_(rank), bell_(state_->seat(rank).bell) {}
  ~LocalTransport() override { close(0); }

  Rank rank() const override { return rank_; }
  Rank size() const override { return state_->size; }
  std::size_t head_bytes() const override { return state_->head_bytes; }
  bool wakes() const override { return true; }
  const TransportCounters& counters() const override { return counters_; }
  void wait(Nanoseconds timeout) override { bell_.wait(timeout); }
  void wake() override { ring(state_->seat(rank_).bell); }
  void close(Nanoseconds /*patience*/) override { state_->remove(rank_, Presence::closed); }

  void send_head(Rank peer, std::vector<std::byte>&& head) override {
    const std::size_t bytes = head.size();
    check_peer(peer);
    CASYNC_CHECK(head.size() <= state_->head_bytes, head.size(), " > ", state_->head_bytes);
    {
      std::lock_guard lock(state_->mutex);
      if (unreachable(peer)) return;
      state_->link(rank_, peer).heads.push_back(std::move(head));
    }
    count_sent(bytes);
    ring(state_->seat(peer).bell);
  }

  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    check_peer(peer);
    {
      std::lock_guard lock(state_->mutex);
      if (unreachable(peer)) return;
      state_->link(rank_, peer).sent.push_back({body, id});
    }
    count_sent(body.size());
    ring(state_->seat(peer).bell);
  }

  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override {
    check_peer(peer);
    std::lock_guard lock(state_->mutex);
    if (unreachable(peer)) return;
    state_->link(peer, rank_).accepted.push_back({body, id});
    if (state_->link(peer, rank_).matched()) ring(state_->seat(rank_).bell);
  }

  bool poll(TransportSink& sink) override {
    collect();
    copy_bodies();
    return report(sink);
  }

  bool moving() const override {
    std::lock_guard lock(state_->mutex);
    for (Rank peer = 0; peer < state_->size; ++peer) {
      const Link& out = state_->link(rank_, peer);
      const Link& in = state_->link(peer, rank_);
      if (out.matched() || in.matched() || !out.heads.empty() || !in.heads.empty()) return true;
    }
    return false;
  }

  void flush(Nanoseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
    const auto pending = [this] {
      std::lock_guard lock(state_->mutex);
      for (Rank peer = 0; peer < state_->size; ++peer) {
        if (!state_->link(rank_, peer).sent.empty()) return true;
      }
      return false;
    };
    while (pending()) {
      const auto left = deadline - std::chrono::steady_clock::now();
      if (left.count() <= 0) break;
      bell_.wait(std::chrono::nanoseconds(left).count());
    }
    wake();  // the rings taken above may have been meant for the next wait
  }

 private:
  struct Copy {
    Rank peer;
    SentBody from;
    AcceptedBody to;
  };

  void check_peer(Rank peer) const {
    CASYNC_CHECK(peer < state_->size && peer != rank_, "rank ", rank_, ", peer ", peer);
  }

  bool unreachable(Rank peer) const {
    return state_->gone(peer) || state_->gone(rank_) || state_->link(peer, rank_).down_reported;
  }

  void count_sent(std::size_t bytes) {
    counters_.sent_bytes += bytes;
    ++counters_.sent_messages;
  }

  void count_received(std::size_t bytes) {
    counters_.received_bytes += bytes;
    ++counters_.received_messages;
  }

  /// Takes out of the mailboxes what can be reported now.
  void collect() {
    std::lock_guard lock(state_->mutex);
    Seat& own = state_->seat(rank_);
    if (own.presence != Presence::alive || own.stopped) return;
    sent_.swap(own.sent_ids);
    for (Rank peer = 0; peer < state_->size; ++peer) {
      if (peer == rank_ || state_->seat(peer).stopped) continue;
      Link& in = state_->link(peer, rank_);
      for (auto& head : in.heads) heads_.emplace_back(peer, std::move(head));
      in.heads.clear();
      while (in.matched()) {
        const Copy copy{peer, in.sent.front(), in.accepted.front()};
        CASYNC_CHECK(copy.from.bytes.size() == copy.to.memory.size(), "rank ", peer, " sent ", copy.from.bytes.size(),
                     " bytes, rank ", rank_, " accepted ", copy.to.memory.size());
        copies_.push_back(copy);
        in.sent.pop_front();
        in.accepted.pop_front();
        ++own.copies;
        ++state_->seat(peer).copies;
      }
      if (state_->gone(peer) && !in.down_reported) {
        in.down_reported = true;
        downs_.emplace_back(peer, state_->seat(peer).presence);
      }
    }
  }

  void copy_bodies() {
    if (copies_.empty()) return;
    for (const Copy& copy : copies_) {
      if (!copy.from.bytes.empty()) {
        std::memcpy(copy.to.memory.data(), copy.from.bytes.data(), copy.from.bytes.size());
      }
    }
    std::lock_guard lock(state_->mutex);
    for (const Copy& copy : copies_) {
      Seat& sender = state_->seat(copy.peer);
      --state_->seat(rank_).copies;
      --sender.copies;
      sender.sent_ids.push_back(copy.from.id);
      ring(sender.bell);
    }
    state_->copied.notify_all();
  }

  /// The callbacks may send and accept: they see none of the members emptied here.
  bool report(TransportSink& sink) {
    const auto sent = std::exchange(sent_, {});
    const auto heads = std::exchange(heads_, {});
    const auto copies = std::exchange(copies_, {});
    const auto downs = std::exchange(downs_, {});
    for (const std::uint64_t id : sent) sink.on_sent(id);
    for (const auto& [peer, head] : heads) {
      count_received(head.size());
      sink.on_head(peer, head);
    }
    for (const Copy& copy : copies) {
      count_received(copy.to.memory.size());
      sink.on_body(copy.to.id);
    }
    for (const auto& [peer, presence] : downs) {
      sink.on_peer_down(peer, presence == Presence::closed ? "it closed the session" : "it was killed (local world)");
    }
    return !(sent.empty() && heads.empty() && copies.empty() && downs.empty());
  }

  const std::shared_ptr<State> state_;
  const Rank rank_;
  Doorbell bell_;
  TransportCounters counters_;
  // Between collect and report.
  std::vector<std::uint64_t> sent_;
  std::vector<std::pair<Rank, std::vector<std::byte>>> heads_;
  std::vector<Copy> copies_;
  std::vector<std::pair<Rank, Presence>> downs_;
};

}  // namespace local

LocalWorld::LocalWorld(Rank size, std::size_t head_bytes) {
  CASYNC_CHECK(size >= 1, size);
  state_ = std::make_shared<local::State>(size, head_bytes);
}

std::unique_ptr<Transport> LocalWorld::connect(Rank rank) {
  std::lock_guard lock(state_->mutex);
  CASYNC_CHECK(rank < state_->size, rank);
  CASYNC_CHECK(!state_->seat(rank).connected, "rank ", rank, " is connected already");
  state_->seat(rank).connected = true;
  return std::make_unique<local::LocalTransport>(state_, rank);
}

void LocalWorld::kill(Rank rank) { state_->remove(rank, local::Presence::killed); }

void LocalWorld::stop(Rank rank) {
  std::lock_guard lock(state_->mutex);
  state_->seat(rank).stopped = true;
}

void LocalWorld::resume(Rank rank) {
  std::lock_guard lock(state_->mutex);
  state_->seat(rank).stopped = false;
  state_->ring_all();
}

std::unique_ptr<Transport> connect_solo() { return LocalWorld(1).connect(0); }

}  // namespace casync::transport
