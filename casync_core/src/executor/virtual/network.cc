#include "executor/virtual/network.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "casync/error.hpp"

namespace casync {

namespace {

constexpr std::size_t kAnswerBytes = 64;  // that a body may start

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
  rank_links_.resize(n);
  host_links_.resize(n == 0 ? 0 : *std::max_element(options_.host_of.begin(), options_.host_of.end()) + std::size_t{1});
}

VirtualNetwork::~VirtualNetwork() = default;

Transport& VirtualNetwork::transport(Rank rank) { return *ports_[rank]; }

bool VirtualNetwork::near(Rank from, Rank to) const { return options_.host_of[from] == options_.host_of[to]; }

bool VirtualNetwork::on_one_host() const {
  return std::ranges::all_of(options_.host_of, [&](std::uint32_t host) { return host == options_.host_of.front(); });
}

VirtualNetwork::Link& VirtualNetwork::link(Rank rank, bool is_near) {
  const auto r = rank;
  return is_near ? rank_links_[r] : host_links_[options_.host_of[r]];
}

Nanoseconds VirtualNetwork::span_of(Rank from, Rank to, std::size_t bytes) const {
  if (near(from, to))
    return static_cast<Nanoseconds>(static_cast<double>(bytes) / options_.within.bytes_per_second * 1e9);
  double speed = options_.between.bytes_per_second;
  if (!options_.host_speed.empty()) {
    const auto factor = [&](Rank rank) { return options_.host_speed[options_.host_of[rank]]; };
    speed *= std::min(factor(from), factor(to));
  }
  return static_cast<Nanoseconds>(static_cast<double>(bytes) / speed * 1e9);
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

void VirtualNetwork::send_head(Rank from, Rank to, std::vector<std::byte>&& head) {
  CASYNC_CHECK(to != from && head.size() <= options_.head_bytes, "rank ", from, " sends a head of ", head.size(),
               " bytes to ", to);
  if (gone_[from] || gone_[to]) return;
  const std::uint64_t message = new_message(from, to);
  const std::size_t bytes = head.size();
  messages_[message].head.swap(head);
  const auto flowing = pair(from, to).flowing;
  if (connected(from, to) && flowing) {
    messages_[*flowing].behind.emplace_back(kHead, message);
  } else {
    queue_head(from, to, bytes, kHead, message);
  }
}

/// Heads pass the bodies of other pairs that wait, but not each other; a body waits for the time that they take.
void VirtualNetwork::queue_head(Rank from, Rank to, std::size_t bytes, std::uint32_t what, std::uint64_t message) {
  const bool is_near = near(from, to);
  const Nanoseconds span = span_of(from, to, bytes);
  Link& out = link(from, is_near);
  Link& in = link(to, is_near);
  out.out_heads = std::max(out.out_heads, agenda_.now()) + span;
  in.in_heads = std::max(in.in_heads, out.out_heads - span) + span;
  out.out_free = std::max(out.out_free, agenda_.now()) + span;
  in.in_free = std::max(in.in_free, agenda_.now()) + span;
  const LinkSpeed& speed = is_near ? options_.within : options_.between;
  Pair& way = pair(from, to);
  way.last_head = std::max(way.last_head + 1, in.in_heads + speed.latency + agenda_.up_to(options_.jitter));
  agenda_.at(way.last_head, *this, what, message);
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
  if (!connected(from, to) || bytes <= options_.connection->eager_bytes) return flow(message);
  // The receiver's answer.
  const auto flowing = pair(to, from).flowing;
  if (flowing) {
    messages_[*flowing].behind.emplace_back(kMayStart, message);
  } else {
    queue_head(to, from, kAnswerBytes, kMayStart, message);
  }
}

/// The sender's share of the time.
void VirtualNetwork::flow(std::uint64_t value) {
  const Message& message = messages_[value];
  const auto [from, to] = std::pair(message.from, message.to);
  const Nanoseconds span = span_of(from, to, message.sent.bytes.size());
  Nanoseconds& out_free = link(from, near(from, to)).out_free;
  const Nanoseconds start = std::max(agenda_.now(), out_free);
  out_free = start + span;
  agenda_.at(start, *this, kStarted, value);
  Nanoseconds taken = start + span;
  if (connected(from, to)) {
    pair(from, to).flowing = value;
    taken -= span_of(from, to, options_.connection->buffer_bytes);
  }
  agenda_.at(taken, *this, kLeft, value);
}

/// The receiver's share of the time: bodies take its link in the order in which they start, not in which they were
/// matched, else one that waits at its sender would keep it from those that come at once.
void VirtualNetwork::started(std::uint64_t value) {
  const Message& message = messages_[value];
  const bool is_near = near(message.from, message.to);
  const Nanoseconds latency = (is_near ? options_.within : options_.between).latency;
  const Nanoseconds span = span_of(message.from, message.to, message.sent.bytes.size());
  Nanoseconds& in_free = link(message.to, is_near).in_free;
  in_free = std::max(agenda_.now() + latency, in_free) + span;
  const Nanoseconds landed = std::max(in_free, agenda_.now() + span + latency) + 1 + agenda_.up_to(options_.jitter);
  Pair& way = pair(message.from, message.to);
  way.last_body = std::max(way.last_body, landed);
  agenda_.at(landed, *this, kLanded, value);
}

void VirtualNetwork::happen(std::uint32_t what, std::uint64_t value) {
  Message& message = messages_[value];
  if (what == kMayStart) return flow(value);
  if (what == kStarted) return started(value);
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
      if (way.flowing == value) way.flowing.reset();
      for (const auto& [waiting, which] : std::exchange(message.behind, {})) {
        const Message& next = messages_[which];
        queue_head(message.from, message.to, waiting == kHead ? next.head.size() : kAnswerBytes, waiting, which);
      }
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
    way.last_head = std::max({way.last_head + 1, way.last_body + 1, agenda_.now() + agenda_.up_to(within)});
    agenda_.at(way.last_head, *this, kDown, new_message(rank, peer));
  }
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
