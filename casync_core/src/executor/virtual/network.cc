#include "executor/virtual/network.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "casync/error.hpp"

namespace casync {

namespace {

constexpr std::size_t kPacketBytes = 1448;
constexpr double kQuantumBytes = 4096;

/// How often rates change at most: a host hears of others no sooner than after its latency.
Nanoseconds quantum_of(const LinkSpeed& speed) {
  return std::min(speed.latency, static_cast<Nanoseconds>(kQuantumBytes / speed.bytes_per_second * 1e9));
}

}  // namespace

/// One rank's end. What arrived waits in `mail` for the next poll.
class VirtualNetwork::Port final : public Transport {
 public:
  enum class Kind : std::uint8_t { head, sent, body, down };
  struct Mail {
    Kind kind;
    Rank peer;
    std::uint64_t id;
    std::vector<std::byte> head;
  };

  Port(VirtualNetwork& network, Rank rank) : network_(network), rank_(rank) {}

  Rank rank() const override { return rank_; }
  Rank size() const override { return network_.size_; }
  std::size_t head_bytes() const override { return network_.options_.head_bytes; }
  void send_head(Rank peer, std::vector<std::byte>&& head) override {
    count_sent(head.size());
    network_.send_head(rank_, peer, std::move(head));
  }
  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    count_sent(body.size());
    network_.send_body(rank_, peer, body, id);
  }
  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override {
    counters_.received_bytes += body.size();
    network_.accept(peer, rank_, body, id);
  }

  bool poll(TransportSink& sink) override {
    const auto mail = std::exchange(mail_, {});
    for (const Mail& item : mail) {
      const bool told = network_.pair(item.peer, rank_).down;
      switch (item.kind) {
        case Kind::sent:
          sink.on_sent(item.id);
          break;
        case Kind::head:
          counters_.received_bytes += item.head.size();
          ++counters_.received_messages;
          if (!told) sink.on_head(item.peer, item.head);
          break;
        case Kind::body:
          ++counters_.received_messages;
          if (!told) sink.on_body(item.id);
          break;
        case Kind::down:
          network_.pair(item.peer, rank_).down = true;
          sink.on_peer_down(item.peer, network_.why_[item.peer]);
          break;
      }
    }
    return !mail.empty();
  }

  bool moving() const override { return moving_ > 0; }
  void wait(Nanoseconds) override {}
  void wake() override { network_.news_(rank_, true); }
  bool wakes() const override { return network_.on_one_host(); }
  const TransportCounters& counters() const override { return counters_; }
  void flush(Nanoseconds) override {}
  void close(Nanoseconds /*patience*/) override { network_.close(rank_); }

  void deliver(Mail mail, bool rings) {
    mail_.push_back(std::move(mail));
    network_.news_(rank_, rings);
  }
  /// A body has begun (1) or ended (-1) to move from or to this rank.
  void moves(int bodies) { moving_ += bodies; }

 private:
  void count_sent(std::size_t bytes) {
    counters_.sent_bytes += bytes;
    ++counters_.sent_messages;
  }

  VirtualNetwork& network_;
  Rank rank_;
  TransportCounters counters_;
  int moving_ = 0;
  std::vector<Mail> mail_;
};

VirtualNetwork::VirtualNetwork(Agenda& agenda, NetworkOptions options, std::function<void(Rank, bool)> news)
    : agenda_(agenda),
      options_(std::move(options)),
      news_(std::move(news)),
      size_(static_cast<Rank>(options_.host_of.size())) {
  const auto n = static_cast<std::size_t>(size_);
  for (Rank rank = 0; rank < size_; ++rank) ports_.push_back(std::make_unique<Port>(*this, rank));
  gone_.assign(n, false);
  why_.resize(n);
  pairs_.resize(n * n);
  const std::size_t hosts = n == 0 ? 0 : *std::ranges::max_element(options_.host_of) + std::size_t{1};
  std::vector<double> rates(hosts, options_.between.bytes_per_second);
  for (std::size_t h = 0; h < std::min(hosts, options_.host_speed.size()); ++h) rates[h] *= options_.host_speed[h];
  std::vector<std::size_t> ranks(hosts);
  for (const std::uint32_t host : options_.host_of) place_.push_back(ranks[host]++);
  fabrics_.push_back({FairShares(rates, quantum_of(options_.between))});
  for (const std::size_t count : ranks) {
    const std::vector<double> inside(count, options_.within.bytes_per_second);
    fabrics_.push_back({FairShares(inside, quantum_of(options_.within))});
  }
}

VirtualNetwork::~VirtualNetwork() = default;

Transport& VirtualNetwork::transport(Rank rank) { return *ports_[rank]; }

bool VirtualNetwork::near(Rank from, Rank to) const { return options_.host_of[from] == options_.host_of[to]; }

bool VirtualNetwork::on_one_host() const {
  return std::ranges::all_of(options_.host_of, [&](std::uint32_t host) { return host == options_.host_of.front(); });
}

std::uint64_t VirtualNetwork::new_message(Rank from, Rank to) {
  if (free_.empty()) {
    free_.push_back(messages_.size());
    messages_.emplace_back();
  }
  const std::uint64_t index = free_.back();
  free_.pop_back();
  messages_[index].from = from;
  messages_[index].to = to;
  return index;
}

/// A head of one packet passes what moves, unless a longer one of its pair is before it. What moves next in its pair
/// takes its bytes too.
void VirtualNetwork::send_head(Rank from, Rank to, std::vector<std::byte>&& head) {
  CASYNC_CHECK(to != from && head.size() <= options_.head_bytes, "rank ", from, " sends a head of ", head.size(),
               " bytes to ", to);
  if (gone_[from] || gone_[to]) return;
  const std::uint64_t message = new_message(from, to);
  const std::size_t bytes = head.size();
  messages_[message].head.swap(head);
  Pair& way = pair(from, to);
  if (bytes > kPacketBytes || !way.queues[kHeads].empty()) return queue(from, to, kHeads, {message, bytes});
  way.passed += bytes;
  arrive(from, to, message,
         static_cast<Nanoseconds>(static_cast<double>(bytes) / speed(from, to).bytes_per_second * 1e9));
}

/// A head arrives that leaves after this time.
void VirtualNetwork::arrive(Rank from, Rank to, std::uint64_t message, Nanoseconds span) {
  Pair& way = pair(from, to);
  const Nanoseconds time = agenda_.now() + span + speed(from, to).latency;
  way.last_head = std::max(way.last_head + 1, time + agenda_.up_to(options_.jitter));
  agenda_.at(way.last_head, *this, kHead, message);
}

void VirtualNetwork::send_body(Rank from, Rank to, std::span<const std::byte> body, std::uint64_t id) {
  CASYNC_CHECK(to != from, "rank ", from);
  if (gone_[from] || gone_[to]) return;
  pair(from, to).sent.push_back({body, id});
  match(from, to);
}

void VirtualNetwork::accept(Rank from, Rank to, std::span<std::byte> body, std::uint64_t id) {
  if (gone_[from] || gone_[to]) return;
  pair(from, to).accepted.push_back({body, id});
  match(from, to);
}

void VirtualNetwork::match(Rank from, Rank to) {
  Pair& way = pair(from, to);
  if (way.sent.empty() || way.accepted.empty()) return;
  const std::uint64_t message = new_message(from, to);
  messages_[message].sent = way.sent.front();
  messages_[message].accepted = way.accepted.front();
  way.sent.pop_front();
  way.accepted.pop_front();
  const std::size_t bytes = messages_[message].sent.bytes.size();
  CASYNC_CHECK(bytes == messages_[message].accepted.memory.size(), "rank ", from, " sent ", bytes, " bytes, rank ", to,
               " accepted ", messages_[message].accepted.memory.size());
  for (const Rank end : {from, to}) ports_[end]->moves(1);
  queue(from, to, kBodies, {message, bytes});
}

/// Bodies of a pair move one after the other, and so do its heads.
void VirtualNetwork::queue(Rank from, Rank to, Kind kind, const Queued& one) {
  auto& waiting = pair(from, to).queues[kind];
  waiting.push_back(one);
  if (waiting.size() == 1) start(from, to, kind);
}

void VirtualNetwork::start(Rank from, Rank to, Kind kind) {
  Pair& way = pair(from, to);
  const std::size_t bytes = way.queues[kind].front().bytes + std::exchange(way.passed, 0);
  const std::uint64_t id = (std::uint64_t{from} * size_ + to) * kKinds + kind;
  Fabric& fabric = fabric_of(from, to);
  fabric.moving.start(id, end_of(from, to), end_of(to, from), bytes, agenda_.now());
  look(fabric);
}

/// To look at a fabric when something happens there.
void VirtualNetwork::look(Fabric& fabric) {
  const Nanoseconds time = fabric.moving.next();
  if (time == FairShares::kNever || fabric.looks == time) return;
  fabric.looks = time;
  agenda_.at(time, *this, kThrough, static_cast<std::uint64_t>(&fabric - fabrics_.data()));
}

void VirtualNetwork::through(Fabric& fabric) {
  const Nanoseconds now = agenda_.now();
  if (fabric.looks <= now) fabric.looks = -1;
  for (const std::uint64_t id : fabric.moving.through(now)) {
    const auto kind = static_cast<Kind>(id % kKinds);
    const auto from = static_cast<Rank>(id / kKinds / size_);
    const auto to = static_cast<Rank>(id / kKinds % size_);
    Pair& way = pair(from, to);
    const Queued one = way.queues[kind].front();
    way.queues[kind].pop_front();
    if (kind == kHeads) {
      arrive(from, to, one.message, 0);
    } else {
      agenda_.at(now, *this, kLeft, one.message);
      const Nanoseconds landed = now + speed(from, to).latency + 1 + agenda_.up_to(options_.jitter);
      way.last_body = std::max(way.last_body, landed);
      agenda_.at(way.last_body, *this, kLanded, one.message);
    }
    if (!way.queues[kind].empty()) start(from, to, kind);
    tell_gone(way);
  }
  look(fabric);
}

void VirtualNetwork::happen(std::uint32_t what, std::uint64_t value) {
  if (what == kThrough) return through(fabrics_[value]);
  Message& message = messages_[value];
  Pair& way = pair(message.from, message.to);
  if (way.cut) {
    way.held.emplace_back(what, value);
    return;
  }
  Port& sender = *ports_[message.from];
  Port& receiver = *ports_[message.to];
  const bool rings = near(message.from, message.to);
  const bool from_gone = gone_[message.from];
  const bool to_gone = gone_[message.to];
  switch (what) {
    case kHead:
      if (!to_gone) receiver.deliver({Port::Kind::head, message.from, 0, std::move(message.head)}, rings);
      break;
    case kLeft:
      sender.moves(-1);
      if (from_gone || to_gone) return;
      message.left = true;
      if (options_.copies && !message.sent.bytes.empty()) {
        std::memcpy(message.accepted.memory.data(), message.sent.bytes.data(), message.sent.bytes.size());
      }
      sender.deliver({Port::Kind::sent, message.to, message.sent.id, {}}, rings);
      return;
    case kLanded:
      receiver.moves(-1);
      if (message.left && !to_gone) receiver.deliver({Port::Kind::body, message.from, message.accepted.id, {}}, rings);
      break;
    case kDown:
      if (!to_gone) receiver.deliver({Port::Kind::down, message.from, 0, {}}, rings);
      break;
    default:
      CASYNC_CHECK(false, what);
  }
  message.head.clear();
  message.left = false;
  free_.push_back(value);
}

void VirtualNetwork::gone(Rank rank, double noticed, Nanoseconds within, const std::string& why) {
  if (gone_[rank]) return;
  gone_[rank] = true;
  why_[rank] = why;
  for (Rank peer = 0; peer < size_; ++peer) {
    for (Pair* way : {&pair(rank, peer), &pair(peer, rank)}) {
      way->sent.clear();
      way->accepted.clear();
    }
    const bool hears = static_cast<double>(agenda_.random() >> 11U) * 0x1.0p-53 < noticed;
    if (peer == rank || !hears) continue;
    Pair& way = pair(rank, peer);
    way.heard = {new_message(rank, peer), agenda_.now() + agenda_.up_to(within)};
    tell_gone(way);
  }
}

/// A peer hears of a rank that is gone once all has arrived that was on its way.
void VirtualNetwork::tell_gone(Pair& way) {
  if (!way.heard || std::ranges::any_of(way.queues, [](const auto& queue) { return !queue.empty(); })) return;
  const auto [message, soonest] = *std::exchange(way.heard, std::nullopt);
  way.last_head = std::max({way.last_head + 1, way.last_body + 1, soonest});
  agenda_.at(way.last_head, *this, kDown, message);
}

void VirtualNetwork::kill(Rank rank, double noticed, Nanoseconds within) {
  gone(rank, noticed, within, "it was killed (virtual world)");
}

void VirtualNetwork::close(Rank rank) { gone(rank, 1, 0, "it closed the session"); }

void VirtualNetwork::cut(Rank a, Rank b) { pair(a, b).cut = pair(b, a).cut = true; }

void VirtualNetwork::mend(Rank a, Rank b) {
  for (Pair* way : {&pair(a, b), &pair(b, a)}) {
    way->cut = false;
    // In the order held, so that heads stay in the order sent.
    for (const auto& [what, value] : std::exchange(way->held, {})) happen(what, value);
  }
}

}  // namespace casync
