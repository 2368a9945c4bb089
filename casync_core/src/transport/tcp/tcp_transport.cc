#include "transport/tcp/tcp_transport.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "casync/error.hpp"
#include "transport/host/host_mail.hpp"
#include "transport/host/neighbours.hpp"
#include "transport/host/rings.hpp"
#include "transport/nobody.hpp"
#include "transport/standing.hpp"
#include "transport/tcp/bodies_in.hpp"
#include "transport/tcp/bodies_out.hpp"
#include "transport/tcp/given.hpp"
#include "transport/tcp/heads.hpp"
#include "transport/tcp/readiness.hpp"
#include "transport/tcp/socket.hpp"

namespace casync::transport {
namespace tcp {
namespace {

using host::HostMail;
using host::Rings;

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kFarewellTime = 5'000'000'000;
constexpr Nanoseconds kFarewellTimeAfterFailure = 1'000'000'000;
/// Of one connection in one poll; then the others have their turn.
constexpr std::size_t kReadPerPoll = std::size_t{4} << 20;
/// So many heads of one neighbour in a poll, then the next one's.
constexpr int kHeadsPerRound = 4;
/// Where the bytes behind a chunk go, until they are looked at. Small bodies come through it, large ones do not.
constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
/// So much of it is offered behind a large chunk. The next one is most likely large too, and what lands here is copied.
constexpr std::size_t kScratchBytesBehindLarge = std::size_t{1} << 10;
/// Of a body, that one of several streams takes at once. A single stream takes all.
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kWholeBody = std::size_t{1} << 40;
/// In a tag, above the number of the connection: 0 for heads, then the streams.
constexpr int kRankShift = 16;

/// A socket and what it is watched for.
struct Connection {
  Socket socket;
  Ready watched{};
};

struct Stream : Connection {
  StreamOut out;
  StreamIn in;
  bool ended = false;  ///< the peer sends nothing more on it
};

struct Peer : Standing {
  explicit Peer(std::size_t chunk_bytes) : bodies_out(chunk_bytes) {}

  Connection heads;
  HeadsOut heads_out;
  HeadsIn heads_in;
  std::deque<Stream> streams;
  BodiesOut bodies_out;
  BodiesIn bodies_in;
  std::uint64_t flowed = 0;  ///< bytes of bodies, both ways
  bool has_goodbye = false;  ///< read, though bodies may still come
  bool is_marked = false;    ///< there is something to push when the outermost call ends
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(Rank self, std::vector<Given> given, host::Neighbours neighbours)
      : rank_(self),
        neighbours_(std::move(neighbours)),
        mail_(self, neighbours_),
        ready_(neighbours_.memory->bell(neighbours_.numbers[self])),
        rings_(neighbours_.bells(), [this](Rank peer, DoorbellCell& bell) { ring(peer, bell); }),
        scratch_(std::make_unique_for_overwrite<std::byte[]>(kScratchBytes)) {
    for (Rank peer = 0; peer < given.size(); ++peer) {
      Peer& other =
          *peers_.emplace_back(std::make_unique<Peer>(given[peer].bodies.size() > 1 ? kChunkBytes : kWholeBody));
      if (peer == rank_) continue;
      open(other.heads, std::move(given[peer].heads), peer, 0);
      for (Socket& socket : given[peer].bodies) {
        Stream& stream = other.streams.emplace_back();
        open(stream, std::move(socket), peer, other.streams.size());
      }
    }
  }
  ~TcpTransport() override { close(kFarewellTime); }

  Rank rank() const override { return rank_; }
  Rank size() const override { return static_cast<Rank>(peers_.size()); }
  std::size_t head_bytes() const override { return host::kHeadBytes; }
  const TransportCounters& counters() const override { return counters_; }
  bool moving() const override { return false; }
  std::optional<std::uint64_t> flowed(Rank peer) const override { return peers_[peer]->flowed; }
  bool wakes() const override { return true; }
  bool hears() const override { return true; }
  void wake() override { ready_.ring(); }
  void wait(Nanoseconds timeout) override { ready_.sleep(timeout); }
  void close_in_child() override {
    for (const std::unique_ptr<Peer>& peer : peers_) {
      peer->heads.socket.close();
      for (Stream& stream : peer->streams) stream.socket.close();
    }
  }

  void send_head(Rank peer, std::vector<std::byte>&& head) override {
    Peer& to = checked(peer);
    CASYNC_CHECK(head.size() <= host::kHeadBytes, head.size(), " > ", host::kHeadBytes);
    if (to.down) return;
    const Call call(*this);
    counters_.sent_bytes += head.size();
    ++counters_.sent_messages;
    if (mail_.reaches(peer)) {
      mail_.post(peer, host::HeadKind::user, std::move(head));
      return rings_.mark(peer);
    }
    to.heads_out.add(FrameKind::head, head);
    mark(peer);
  }

  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    Peer& to = checked(peer);
    if (to.down) return;
    const Call call(*this);
    counters_.sent_bytes += body.size();
    ++counters_.sent_messages;
    to.bodies_out.add(body, id);
    mark(peer);
  }

  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override {
    Peer& from = checked(peer);
    if (from.failed) return;
    from.bodies_in.accept(body, id);
    for (Stream& stream : from.streams) {
      if (!stream.in.is_held()) continue;
      resumable_.push_back(peer);
      return wake();  // the next poll reads it
    }
  }

  bool poll(TransportSink& sink) override {
    const Call call(*this);
    bool any = report_mail(sink);
    // Heads first: most bodies that came with them are accepted by then, and go to their place at once.
    const std::span<Ready> ready = ready_.now();
    const auto bodies =
        std::stable_partition(ready.begin(), ready.end(), [](const Ready& one) { return is_heads(one); });
    for (const Ready& one : std::span(ready.begin(), bodies)) any |= handle_heads(one, sink);
    for (const Ready& one : std::span(bodies, ready.end())) handle_bodies(one);
    read_what_is_left(sink);
    for (const Rank peer : std::exchange(resumable_, {})) resume(peer);
    any |= report_bodies(sink);
    any |= report_sent(sink);
    return report_downs(sink) || any;
  }

  void flush(Nanoseconds timeout) override {
    const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout);
    for (;;) {
      const Call call(*this);
      post_kept();
      std::vector<pollfd> waiting;
      for (Rank peer = 0; peer < size(); ++peer) {
        if (peer == rank_ || peer_of(peer).down) continue;
        push(peer);
        each_connection(peer, [&](Connection& connection) {
          if (connection.watched.to_write)
            waiting.push_back({.fd = connection.socket.descriptor(), .events = POLLOUT, .revents = 0});
        });
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (waiting.empty() || left <= 0) return;
      ::poll(waiting.data(), waiting.size(), static_cast<int>(left));
    }
  }

  /// Every living peer's goodbye has come, and ours is on its way; or `patience` is over. What was not sent by then is
  /// dropped.
  void close(Nanoseconds patience) override {
    if (closed_) return;
    closed_ = true;
    for (Rank peer = 0; peer < size(); ++peer) {
      if (peer == rank_ || peer_of(peer).failed) continue;
      peer_of(peer).down = true;
      stop_bodies(peer);
    }
    const auto start = Clock::now();
    Nobody nobody;
    for (;;) {
      part_from_all();
      poll(nobody);
      const auto limit = any_failed() ? std::min(patience, kFarewellTimeAfterFailure) : patience;
      const auto left = std::chrono::nanoseconds(limit) - (Clock::now() - start);
      if (ended() || left.count() <= 0) break;
      wait(std::min<Nanoseconds>(left.count(), 50 * kMillisecond));
    }
    peers_.clear();
    gone_.clear();
  }

 private:
  /// What the outermost call has left to be sent goes when it ends, so that several heads cost one call to the kernel.
  class Call {
   public:
    explicit Call(TcpTransport& of) : of_(of), rings_(std::in_place, of.rings_) { ++of_.depth_; }
    ~Call() {
      rings_.reset();  // a bell is a head as well
      if (--of_.depth_ > 0) return;
      for (const Rank peer : std::exchange(of_.marked_, {})) {
        of_.peer_of(peer).is_marked = false;
        of_.push(peer);
      }
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    TcpTransport& of_;
    std::optional<Rings::Call> rings_;
  };

  Peer& peer_of(Rank peer) { return *peers_[peer]; }

  Peer& checked(Rank peer) {
    CASYNC_CHECK(peer < size() && peer != rank_, "rank ", rank_, ", peer ", peer);
    return peer_of(peer);
  }

  template <typename Do>
  void each_connection(Rank peer, Do what) {
    what(peer_of(peer).heads);
    for (Stream& stream : peer_of(peer).streams) what(stream);
  }

  void open(Connection& connection, Socket socket, Rank peer, std::size_t number) {
    connection.socket = std::move(socket);
    connection.watched = {.tag = std::uint64_t{peer} << kRankShift | number, .to_read = true};
    ready_.add(connection.socket.descriptor(), connection.watched);
  }

  void watch(Connection& connection, bool to_read, bool to_write) {
    if (!connection.socket.is_open()) return;
    if (connection.watched.to_read == to_read && connection.watched.to_write == to_write) return;
    connection.watched.to_read = to_read;
    connection.watched.to_write = to_write;
    ready_.change(connection.socket.descriptor(), connection.watched);
  }

  void close(Connection& connection) {
    if (!connection.socket.is_open()) return;
    ready_.remove(connection.socket.descriptor());
    connection.socket.close();
    connection.watched = {};
  }

  // --- Sending ---

  void mark(Rank peer) {
    if (std::exchange(peer_of(peer).is_marked, true)) return;
    marked_.push_back(peer);
  }

  /// A neighbour reads its mailbox when it is awake; who sleeps hears a head.
  void ring(Rank peer, DoorbellCell& bell) {
    Peer& to = peer_of(peer);
    if (!count_ring(bell) || to.goodbye_sent || !to.heads.socket.is_open()) return;
    to.heads_out.add(FrameKind::bell);
    mark(peer);
  }

  /// As much as the connections to `peer` take now.
  void push(Rank peer) {
    push_heads(peer);
    Peer& to = peer_of(peer);
    if (to.down) return;
    for (std::size_t i = 0; i < to.streams.size() && !to.down; ++i) push_bodies(peer, to.streams[i]);
  }

  void push_heads(Rank peer) {
    Peer& to = peer_of(peer);
    if (!to.heads.socket.is_open()) return to.heads_out.clear();
    while (!to.heads_out.waiting().empty()) {
      iovec waiting = part(to.heads_out.waiting());
      const Moved moved = to.heads.socket.send({&waiting, 1});
      if (moved.error != 0) {
        to.heads_out.clear();
        broken_.emplace_back(peer, error_text(moved.error));
        wake();  // the next poll reads
        break;
      }
      if (moved.bytes == 0) break;
      to.heads_out.sent(moved.bytes);
    }
    watch(to.heads, to.heads.watched.to_read, !to.heads_out.waiting().empty());
  }

  void push_bodies(Rank peer, Stream& stream) {
    Peer& to = peer_of(peer);
    for (;;) {
      if (stream.out.empty()) stream.out.take(to.bodies_out);
      if (stream.out.empty()) break;
      const Moved moved = stream.socket.send(stream.out.gather());
      if (moved.error != 0) return fail(peer, error_text(moved.error));
      if (moved.bytes == 0) break;
      to.flowed += moved.bytes;
      chunks_.clear();
      stream.out.sent(moved.bytes, chunks_);
      for (const Chunk& chunk : chunks_) {
        const auto id = to.bodies_out.sent(chunk);
        if (!id) continue;
        if (sent_.empty()) wake();  // the next poll reports it
        sent_.push_back(*id);
      }
    }
    watch(stream, stream.watched.to_read, !stream.out.empty());
  }

  // --- Receiving ---

  static Rank rank_of(const Ready& ready) { return static_cast<Rank>(ready.tag >> kRankShift); }
  static std::size_t number_of(const Ready& ready) { return ready.tag & ((std::uint64_t{1} << kRankShift) - 1); }
  static bool is_heads(const Ready& ready) { return number_of(ready) == 0; }

  bool handle_heads(const Ready& ready, TransportSink& sink) {
    const Rank peer = rank_of(ready);
    if (ready.to_write) push_heads(peer);
    if (ready.lost && peer_of(peer).has_goodbye) close(peer_of(peer).heads);  // nobody reads ours any more
    return (ready.to_read || ready.lost) && read_heads(peer, sink);
  }

  void handle_bodies(const Ready& ready) {
    const Rank peer = rank_of(ready);
    Stream& stream = peer_of(peer).streams[number_of(ready) - 1];
    if (!stream.socket.is_open()) return;  // an earlier event has closed it
    if (ready.to_write) push_bodies(peer, stream);
    if (!stream.socket.is_open()) return;
    if (!stream.in.is_held()) {
      if (ready.to_read || ready.lost) read_bodies(peer, stream);
    } else if (ready.lost) {
      on_stream_error(peer, stream);
    } else {
      watch(stream, false, stream.watched.to_write);  // it has been held for a poll: this may take longer
    }
  }

  /// Reports what it reads.
  bool read_heads(Rank peer, TransportSink& sink) {
    Peer& from = peer_of(peer);
    bool any = false;
    while (from.heads.socket.is_open() && !from.has_goodbye) {
      iovec room = part(from.heads_in.room());
      const Moved moved = from.heads.socket.receive({&room, 1});
      if (moved.ended || moved.error != 0) {
        lost_heads(peer, moved.ended ? "its connection has ended without a goodbye" : error_text(moved.error));
        break;
      }
      if (moved.bytes == 0) break;
      from.heads_in.received(moved.bytes);
      any |= report_heads(peer, sink);
      if (moved.bytes < room.iov_len) break;
    }
    return any;
  }

  bool report_heads(Rank peer, TransportSink& sink) {
    Peer& from = peer_of(peer);
    bool any = false;
    try {
      while (const auto frame = from.heads_in.next()) any |= report_frame(peer, *frame, sink);
    } catch (const CorruptPayload& error) {
      fail(peer,
           detail::concat("it sent what is not a head (", error.what(), "): does it run another version of CaSync?"));
    }
    return any;
  }

  bool report_frame(Rank peer, const HeadsIn::Frame& frame, TransportSink& sink) {
    Peer& from = peer_of(peer);
    switch (frame.kind) {
      case FrameKind::bell:
        return false;
      case FrameKind::head:
        counters_.received_bytes += frame.bytes.size();
        ++counters_.received_messages;
        if (!from.reported) sink.on_head(peer, frame.bytes);
        return true;
      case FrameKind::goodbye:
        while (take_mail(peer, sink)) {  // it was there before
        }
        from.has_goodbye = true;
        watch(from.heads, false, from.heads.watched.to_write);
        close_if_over(peer);
        return true;
    }
    return false;
  }

  void read_bodies(Rank peer, Stream& stream) {
    Peer& from = peer_of(peer);
    try {
      for (std::size_t read = 0; read < kReadPerPoll && !stream.in.is_held();) {
        const std::span<std::byte> rest = stream.in.rest();
        const bool is_large = rest.size() > kScratchBytes;
        const std::span scratch(scratch_.get(), is_large ? kScratchBytesBehindLarge : kScratchBytes);
        std::array<iovec, 2> room{part(rest), part(scratch)};
        const Moved moved = stream.socket.receive(rest.empty() ? std::span(room).last(1) : std::span(room));
        if (moved.ended || moved.error != 0) {
          if (moved.error != 0 && !from.has_goodbye) return fail(peer, error_text(moved.error));
          return end(peer, stream);
        }
        if (moved.bytes == 0) break;
        from.flowed += moved.bytes;
        stream.in.received(moved.bytes, scratch, from.bodies_in, arrived_);
        read += moved.bytes;
        if (moved.bytes < rest.size() + scratch.size()) break;
      }
    } catch (const CorruptPayload& error) {
      return fail(peer, error.what());
    }
    if (stream.in.is_held()) close_if_over(peer);  // the next chunk is of a body that was not accepted
  }

  void resume(Rank peer) {
    Peer& from = peer_of(peer);
    for (Stream& stream : from.streams) {
      if (from.failed || !stream.in.is_held()) continue;
      try {
        if (!stream.in.resume(from.bodies_in, arrived_)) continue;
      } catch (const CorruptPayload& error) {
        return fail(peer, error.what());
      }
      watch(stream, true, stream.watched.to_write);
      if (stream.socket.is_open()) read_bodies(peer, stream);
    }
  }

  /// The peer sends nothing more on it.
  void end(Rank peer, Stream& stream) {
    stream.ended = true;
    close(stream);
    close_if_over(peer);
  }

  /// The kernel says so of a stream that is held.
  void on_stream_error(Rank peer, Stream& stream) {
    const int error = stream.socket.pending_error();
    if (error != 0 && !peer_of(peer).has_goodbye) return fail(peer, error_text(error));
    end(peer, stream);
  }

  bool report_bodies(TransportSink& sink) {
    bool any = false;
    while (!arrived_.empty()) {
      const auto bodies = std::exchange(arrived_, {});
      for (const Arrived& body : bodies) {
        counters_.received_bytes += body.bytes;
        ++counters_.received_messages;
        sink.on_body(body.id);
      }
      any = true;
    }
    return any;
  }

  bool report_sent(TransportSink& sink) {
    const auto sent = std::exchange(sent_, {});
    for (const std::uint64_t id : sent) sink.on_sent(id);
    return !sent.empty();
  }

  // --- Heads of this host ---

  void post_kept() {
    mail_.post_kept([this](Rank peer) { rings_.mark(peer); });
  }

  bool report_mail(TransportSink& sink) {
    post_kept();
    bool any = false;
    for (const Rank peer : mail_.peers()) {
      int heads = 0;
      while (heads < kHeadsPerRound && take_mail(peer, sink)) ++heads;
      any |= heads > 0;
      if (heads == kHeadsPerRound) wake();  // there may be more
    }
    return any;
  }

  /// Reports one head that came by mail; false if there is none.
  bool take_mail(Rank peer, TransportSink& sink) {
    if (!mail_.reaches(peer) || peer_of(peer).has_goodbye) return false;
    std::optional<HostMail::Head> head;
    try {
      head = mail_.front(peer);
    } catch (const CorruptPayload& error) {
      fail(peer, detail::concat("what it left in this host's shared memory is not a head: ", error.what()));
    }
    if (!head) return false;
    const auto pop = [&] {
      if (mail_.pop(peer)) rings_.mark(peer);
    };
    try {
      report_frame(peer, {FrameKind::head, head->bytes}, sink);
    } catch (...) {
      pop();  // it is reported once
      throw;
    }
    pop();
    return true;
  }

  // --- Peers that are gone ---

  void fail(Rank peer, std::string why) {
    peer_of(peer).failed = true;
    stop_bodies(peer);
    mark_down(peer, std::move(why));
  }

  void lost_heads(Rank peer, std::string why) {
    close(peer_of(peer).heads);
    if (!peer_of(peer).has_goodbye) fail(peer, std::move(why));
  }

  /// Heads could not be written: the peer has failed, unless a goodbye is among what was not read yet.
  void read_what_is_left(TransportSink& sink) {
    for (const auto& [peer, why] : std::exchange(broken_, {})) {
      read_heads(peer, sink);
      if (peer_of(peer).heads.socket.is_open() && !peer_of(peer).has_goodbye) lost_heads(peer, why);
    }
  }

  /// It has said goodbye, and all that it had sent before, and we had accepted, is here. What else it had sent waits in
  /// a stream that is held.
  void close_if_over(Rank peer) {
    Peer& from = peer_of(peer);
    if (!from.has_goodbye || from.left) return;
    const auto over = [&](const Stream& stream) { return closed_ || stream.ended || stream.in.is_held(); };
    if (!std::all_of(from.streams.begin(), from.streams.end(), over)) return;
    from.left = true;
    mark_down(peer, "it closed the session");
  }

  void mark_down(Rank peer, std::string why) {
    Peer& from = peer_of(peer);
    if (from.down) return;
    from.down = true;
    mail_.forget(peer);
    downs_.emplace_back(peer, std::move(why));
    wake();  // the next poll reports it
  }

  /// Nothing of a body is read or written any more.
  void stop_bodies(Rank peer) {
    Peer& other = peer_of(peer);
    for (Stream& stream : other.streams) {
      if (!stream.socket.is_open()) continue;
      ready_.remove(stream.socket.descriptor());
      stream.watched = {};
      stream.out.clear();
      if (!closed_) {
        stream.socket.close();
        continue;
      }
      stream.socket.end_sending();  // the peer still reads what was sent
      gone_.push_back(std::move(stream.socket));
    }
    other.bodies_out.clear();
    other.bodies_in.clear();
  }

  bool report_downs(TransportSink& sink) {
    const auto downs = std::exchange(downs_, {});
    for (const auto& [peer, why] : downs) {
      Peer& from = peer_of(peer);
      read_heads(peer, sink);
      while (take_mail(peer, sink)) {
      }
      from.reported = true;
      if (from.has_goodbye) from.failed = false;
      if (from.failed) close(from.heads);
      sink.on_peer_down(peer, from.has_goodbye ? "it closed the session" : why);
    }
    return !downs.empty();
  }

  // --- Closing ---

  /// Says goodbye to who has got all heads.
  void part_from_all() {
    const Call call(*this);
    for (Rank peer = 0; peer < size(); ++peer) {
      Peer& other = peer_of(peer);
      if (peer == rank_ || other.failed || other.goodbye_sent || mail_.keeps(peer)) continue;
      other.goodbye_sent = true;
      other.heads_out.add(FrameKind::goodbye);
      mark(peer);
    }
  }

  bool any_failed() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->failed; });
  }

  bool ended() const {
    for (Rank peer = 0; peer < peers_.size(); ++peer) {
      const Peer& other = *peers_[peer];
      if (peer == rank_ || other.failed) continue;
      if (!other.has_goodbye || !other.goodbye_sent || !other.heads_out.waiting().empty()) return false;
    }
    return true;
  }

  const Rank rank_;
  host::Neighbours neighbours_;
  HostMail mail_;
  Readiness ready_;
  Rings rings_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< none after close
  std::vector<Socket> gone_;                  ///< streams during close: what they were given still flows
  TransportCounters counters_;
  bool closed_ = false;
  int depth_ = 0;
  std::vector<Rank> marked_;                          ///< for the end of the outermost call
  std::vector<Rank> resumable_;                       ///< accepted, with a stream that is held
  std::vector<Chunk> chunks_;                         ///< scratch of push_bodies
  std::vector<Arrived> arrived_;                      ///< not reported
  std::vector<std::uint64_t> sent_;                   ///< not reported
  std::vector<std::pair<Rank, std::string>> broken_;  ///< heads could not be written, and why
  std::vector<std::pair<Rank, std::string>> downs_;   ///< not reported
};

}  // namespace
}  // namespace tcp

std::unique_ptr<Transport> connect_tcp(Rank self, std::vector<PeerSockets> peers, std::span<const int> hosts,
                                       int session_tag, bool share_memory, Nanoseconds timeout) {
  std::vector<tcp::Given> given = tcp::take(peers);
  CASYNC_CHECK(self < peers.size() && hosts.size() == peers.size(), self, " of ", peers.size());
  const auto deadline = tcp::Clock::now() + std::chrono::nanoseconds(timeout);
  auto neighbours = host::meet_neighbours(self, hosts, session_tag, share_memory,
                                          [&](std::uint64_t own) { return tcp::exchange(self, given, own, deadline); });
  return std::make_unique<tcp::TcpTransport>(self, std::move(given), std::move(neighbours));
}

}  // namespace casync::transport
