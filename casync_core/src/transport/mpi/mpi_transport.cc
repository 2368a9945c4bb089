#include "transport/mpi/mpi_transport.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "casync/error.hpp"
#include "transport/host/rings.hpp"
#include "transport/mpi/environment.hpp"
#include "transport/mpi/lanes.hpp"
#include "transport/nobody.hpp"

namespace casync::transport {
namespace mpi {
namespace {

using Clock = std::chrono::steady_clock;
using host::HeadKind;
using host::HostMail;
using host::kHeadBytes;
using host::Rings;

constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kFarewellTime = 5'000'000'000;
constexpr Nanoseconds kFarewellTimeAfterFailure = 1'000'000'000;
/// A poll ends after this many rounds even if heads keep coming.
constexpr int kRoundsPerPoll = 16;
/// And reports so many heads of one neighbour in a round, then the next one's.
constexpr int kHeadsPerRound = 4;

class MpiTransport final : public Transport {
 public:
  explicit MpiTransport(SessionComm session)
      : lanes_(std::make_unique<Lanes>(std::move(session))),
        rank_(lanes_->session.rank),
        size_(lanes_->session.size),
        bell_(own_bell()),
        rings_(lanes_->session.host.bells()) {
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer != rank_) post_heads(peer);
    }
  }
  ~MpiTransport() override { close(kFarewellTime); }

  Rank rank() const override { return rank_; }
  Rank size() const override { return size_; }
  std::size_t head_bytes() const override { return kHeadBytes; }
  const TransportCounters& counters() const override { return counters_; }
  bool moving() const override { return sending_ > 0 || arriving_ > 0 || lanes_->mail.kept() > 0; }
  bool wakes() const override { return lanes_->session.host.are_all(); }
  void wake() override { ring(own_bell()); }
  void wait(Nanoseconds timeout) override { bell_.wait(timeout); }

  void send_head(Rank peer, std::vector<std::byte>&& head) override {
    check_peer(peer);
    CASYNC_CHECK(head.size() <= kHeadBytes, head.size(), " > ", kHeadBytes);
    if (peer_of(peer).down) return;
    const Rings::Call call(rings_);
    count_sent(head.size());
    post_head(peer, HeadKind::user, std::move(head));
  }

  void send_body(Rank peer, std::span<const std::byte> body, std::uint64_t id) override {
    check_peer(peer);
    if (peer_of(peer).down) return;
    const Rings::Call call(rings_);
    if (body.size() > kAnnouncedBytes) post_head(peer, HeadKind::announcement);
    // MPI's send buffers are not const in every version.
    post_body(peer, Lane::body_out, const_cast<std::byte*>(body.data()), body.size(), id);
    count_sent(body.size());
  }

  void accept(Rank peer, std::span<std::byte> body, std::uint64_t id) override {
    check_peer(peer);
    Peer& from = peer_of(peer);
    if (from.failed) return;
    if (body.size() > kAnnouncedBytes) {
      arriving_ -= from.arriving();
      ++from.accepted;
      arriving_ += from.arriving();
    }
    post_body(peer, Lane::body_in, body.data(), body.size(), id);
  }

  bool poll(TransportSink& sink) override {
    const Rings::Call call(rings_);
    bool reported = false;
    for (int round = 0; round < kRoundsPerPoll; ++round) {
      collect();
      const bool mail = report_mail(sink);
      if (done_.empty() && !mail) break;
      reported |= report_done(sink) || mail;
    }
    return report_downs(sink) || reported;
  }

  void flush(Nanoseconds timeout) override {
    const auto deadline = Clock::now() + std::chrono::nanoseconds(timeout);
    {
      const Rings::Call call(rings_);
      post_kept();  // what has no room yet is for close, which reads meanwhile: the peer may wait for room as well
    }
    while (sending_ > 0 && Clock::now() < deadline) {
      if (!collect()) bell_.wait(50 * kMicrosecond);
    }
  }

  /// All of: every living peer's goodbye has come, so nothing of this session is under way to us; what they had sent
  /// without our accept has been received and dropped, so their sends end; our own requests have ended. Then the
  /// communicator can be freed.
  void close(Nanoseconds patience) override {
    if (!lanes_) return;
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !peer_of(peer).failed) peer_of(peer).down = true;
    }
    drop([](const Pending& what) { return what.lane != Lane::head_in; });
    part();
    const auto start = Clock::now();
    while (!ended()) {
      const auto limit = any_failed() ? std::min(patience, kFarewellTimeAfterFailure) : patience;
      if (Clock::now() - start > std::chrono::nanoseconds(limit)) break;
      Nobody nobody;
      const bool news = poll(nobody);
      part();
      if (!receive_unaccepted() && !news) bell_.wait(200 * kMicrosecond);
    }
    if (any_failed()) Environment::note_failure();
    if (ended() && !any_failed()) {
      MPI_Comm_free(&lanes_->session.comm);
      lanes_.reset();
    } else {
      retire(std::move(lanes_));
    }
  }

 private:
  Peer& peer_of(Rank peer) { return lanes_->peers[peer]; }
  const Peer& peer_of(Rank peer) const { return lanes_->peers[peer]; }
  DoorbellCell& own_bell() const {
    const host::Neighbours& host = lanes_->session.host;
    return host.memory->bell(host.numbers[rank_]);
  }

  void check_peer(Rank peer) const { CASYNC_CHECK(peer < size_ && peer != rank_, "rank ", rank_, ", peer ", peer); }

  void count_sent(std::size_t bytes) {
    counters_.sent_bytes += bytes;
    ++counters_.sent_messages;
  }

  void count_received(std::size_t bytes) {
    counters_.received_bytes += bytes;
    ++counters_.received_messages;
  }

  // --- Posting ---

  void post_heads(Rank peer) {
    Peer& from = peer_of(peer);
    from.heads = std::make_unique_for_overwrite<std::byte[]>(lanes_->depth(peer) * kWireHeadBytes);
    from.posted.assign(lanes_->depth(peer), MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < from.posted.size(); ++i) post_head_receive(peer, i);
    test_oldest(peer);
  }

  void post_head_receive(Rank peer, std::size_t index) {
    Peer& from = peer_of(peer);
    const int code = MPI_Irecv(from.head(index), static_cast<int>(kWireHeadBytes), MPI_BYTE, static_cast<int>(peer),
                               kHeadTag, lanes_->session.comm, &from.posted[index]);
    if (code != MPI_SUCCESS) fail(peer, error_text(code));
  }

  void test_oldest(Rank peer) {
    Peer& from = peer_of(peer);
    MPI_Request& request = from.posted[from.oldest];
    if (request == MPI_REQUEST_NULL) return;
    lanes_->requests.add(request, {Lane::head_in, false, peer, static_cast<std::uint32_t>(from.oldest)});
    request = MPI_REQUEST_NULL;
  }

  /// Leaves the memory of an earlier head in the place of this one, or its own.
  void post_head(Rank peer, HeadKind kind, std::vector<std::byte>&& head = {}) {
    if (lanes_->mail.reaches(peer)) {
      lanes_->mail.post(peer, kind, std::move(head));
      return rings_.mark(peer);
    }
    post_by_mpi(peer, kind, std::move(head));
  }

  void post_by_mpi(Rank peer, HeadKind kind, std::vector<std::byte>&& head = {}) {
    const std::uint32_t slot = lanes_->head_buffers.take();
    std::vector<std::byte>& buffer = lanes_->head_buffers[slot];
    buffer.swap(head);
    const auto suffix = std::as_bytes(std::span(&kind, 1));
    buffer.insert(buffer.end(), suffix.begin(), suffix.end());
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(buffer.data(), static_cast<int>(buffer.size()), MPI_BYTE, static_cast<int>(peer),
                               kHeadTag, lanes_->session.comm, &request);
    if (code != MPI_SUCCESS) {
      lanes_->head_buffers.give(slot);
      return fail(peer, error_text(code));
    }
    lanes_->requests.add(request, {Lane::head_out, false, peer, slot});
    ++sending_;
    rings_.mark(peer);
  }

  // --- Heads of this host ---

  bool post_kept() {
    return lanes_->mail.post_kept([this](Rank peer) { rings_.mark(peer); });
  }

  bool report_mail(TransportSink& sink) {
    bool any = post_kept();
    for (const Rank peer : lanes_->mail.peers()) {
      for (int i = 0; i < kHeadsPerRound && take_mail(peer, sink); ++i) any = true;
    }
    return any;
  }

  /// Reports one head that came by mail; false if there is none.
  bool take_mail(Rank peer, TransportSink& sink) {
    if (!lanes_->mail.reaches(peer) || peer_of(peer).left) return false;
    std::optional<HostMail::Head> head;
    try {
      head = lanes_->mail.front(peer);
    } catch (const CorruptPayload& error) {
      fail(peer, detail::concat("what it left in this host's shared memory is not a head: ", error.what()));
    }
    if (!head) return false;
    const auto pop = [&] {
      if (lanes_->mail.pop(peer)) rings_.mark(peer);
    };
    try {
      report_head(peer, head->kind, head->bytes, sink);
    } catch (...) {
      pop();  // it is reported once
      throw;
    }
    pop();
    return true;
  }

  void post_body(Rank peer, Lane lane, std::byte* memory, std::size_t bytes, std::uint64_t id) {
    const std::uint32_t slot = lanes_->bodies.take();
    const auto pieces = static_cast<std::uint32_t>(std::max<std::size_t>(1, (bytes + kPieceBytes - 1) / kPieceBytes));
    lanes_->bodies[slot] = Body{.id = id, .bytes = bytes, .done_bytes = 0, .pieces = pieces};
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      const std::size_t offset = piece * kPieceBytes;
      const int count = static_cast<int>(std::min(kPieceBytes, bytes - offset));
      MPI_Request request = MPI_REQUEST_NULL;
      const int code = lane == Lane::body_out ? MPI_Isend(memory + offset, count, MPI_BYTE, static_cast<int>(peer),
                                                          kBodyTag, lanes_->session.comm, &request)
                                              : MPI_Irecv(memory + offset, count, MPI_BYTE, static_cast<int>(peer),
                                                          kBodyTag, lanes_->session.comm, &request);
      if (code != MPI_SUCCESS) return fail(peer, error_text(code));
      lanes_->requests.add(request, {lane, false, peer, slot});
      if (lane == Lane::body_out) ++sending_;
    }
    if (lane == Lane::body_out) rings_.mark(peer);
  }

  // --- Reporting ---

  /// One pass over the requests; what has completed waits in `done_` for report_done.
  bool collect() {
    const std::size_t before = done_.size();
    lanes_->requests.collect(done_);
    for (std::size_t i = before; i < done_.size(); ++i) sending_ -= is_send(done_[i].what) ? 1 : 0;
    return done_.size() > before;
  }

  /// The callbacks may send and accept, which adds requests but completes none.
  bool report_done(TransportSink& sink) {
    reporting_.clear();
    reporting_.swap(done_);
    bool reported = false;
    for (const Completion& done : reporting_) reported |= report(done, sink);
    return reported;
  }

  bool report(const Completion& done, TransportSink& sink) {
    const auto& [lane, dropped, peer, slot] = done.what;
    if (lane == Lane::head_out) lanes_->head_buffers.give(slot);
    if (done.error != MPI_SUCCESS) {
      if (!dropped) fail(peer, error_text(done.error));
      return false;
    }
    const bool in = lane == Lane::head_in || lane == Lane::body_in;
    if (in && done.bytes > kAnswerBytes) rings_.mark(peer);  // the answer went out with this pass
    if (dropped || lane == Lane::head_out) return false;
    if (lane == Lane::head_in) return report_head(peer, static_cast<std::size_t>(done.bytes), sink);
    return report_body(done, sink);
  }

  bool report_head(Rank peer, std::size_t bytes, TransportSink& sink) {
    Peer& from = peer_of(peer);
    const std::size_t index = from.oldest;
    const std::span<const std::byte> wire(from.head(index), bytes);
    HeadKind kind{};
    if (bytes >= sizeof kind) std::memcpy(&kind, wire.last(sizeof kind).data(), sizeof kind);
    if (bytes < sizeof kind || kind > HeadKind::goodbye) {
      fail(peer,
           detail::concat("it sent ", bytes, " bytes that are not a head: does it run another version of CaSync?"));
      return false;
    }
    report_head(peer, kind, wire.first(bytes - sizeof kind), sink);
    if (from.left) return false;
    post_head_receive(peer, index);
    from.oldest = (from.oldest + 1) % from.posted.size();
    test_oldest(peer);
    return kind == HeadKind::user;
  }

  void report_head(Rank peer, HeadKind kind, std::span<const std::byte> head, TransportSink& sink) {
    Peer& from = peer_of(peer);
    switch (kind) {
      case HeadKind::user:
        count_received(head.size());
        if (!from.reported) sink.on_head(peer, head);
        break;
      case HeadKind::announcement:
        arriving_ -= from.arriving();
        ++from.announced;
        arriving_ += from.arriving();
        break;
      case HeadKind::goodbye:
        while (take_mail(peer, sink)) {  // it was there before
        }
        from.left = true;
        lanes_->mail.forget(peer);
        stop_heads(peer);
        mark_down(peer, "it closed the session");
        break;
    }
  }

  bool report_body(const Completion& done, TransportSink& sink) {
    Body& body = lanes_->bodies[done.what.slot];
    if (done.what.lane == Lane::body_in) body.done_bytes += static_cast<std::size_t>(done.bytes);
    if (--body.pieces > 0) return false;
    const Body whole = body;
    lanes_->bodies.give(done.what.slot);
    if (done.what.lane == Lane::body_out) {
      sink.on_sent(whole.id);
      return true;
    }
    Peer& from = peer_of(done.what.peer);
    if (whole.bytes > kAnnouncedBytes) {
      arriving_ -= from.arriving();
      ++from.completed;
      arriving_ += from.arriving();
    }
    if (whole.done_bytes != whole.bytes) {
      fail(done.what.peer,
           detail::concat("it sent a body of ", whole.done_bytes, " bytes where ", whole.bytes, " were accepted"));
      return false;
    }
    count_received(whole.bytes);
    sink.on_body(whole.id);
    return true;
  }

  bool report_downs(TransportSink& sink) {
    const auto downs = std::exchange(downs_, {});
    for (const auto& [peer, why] : downs) {
      while (drain_head(peer, sink) || take_mail(peer, sink)) {
      }
      stop_heads(peer);
      peer_of(peer).reported = true;
      sink.on_peer_down(peer, why);
    }
    return !downs.empty();
  }

  // --- Peers that are gone ---

  /// MPI, or the bytes of `peer`, say that nothing more can be had from it.
  void fail(Rank peer, std::string why) {
    Peer& from = peer_of(peer);
    from.failed = true;
    arriving_ -= from.arriving();
    from.accepted = 0;
    drop([&](const Pending& what) { return what.peer == peer && what.lane != Lane::head_in; });
    mark_down(peer, std::move(why));
  }

  /// MPI keeps the bodies that the peer had sent before, and they may be accepted later.
  void mark_down(Rank peer, std::string why) {
    Peer& from = peer_of(peer);
    if (from.down) return;
    from.down = true;
    lanes_->mail.forget(peer);
    downs_.emplace_back(peer, std::move(why));
    wake();  // the next poll reports it
  }

  template <typename Which>
  void drop(Which which) {
    for (const Pending& what : lanes_->requests.pending()) {
      if (is_send(what) && which(what)) --sending_;
    }
    lanes_->requests.drop(which);
  }

  /// Reports one head that had arrived before its sender went down; false if there is none.
  bool drain_head(Rank peer, TransportSink& sink) {
    Completion done;
    const auto slot = static_cast<std::uint32_t>(peer_of(peer).oldest);
    if (!lanes_->requests.test({Lane::head_in, false, peer, slot}, done) || done.error != MPI_SUCCESS) return false;
    report_head(peer, static_cast<std::size_t>(done.bytes), sink);
    return true;
  }

  void stop_heads(Rank peer) {
    for (MPI_Request& request : peer_of(peer).posted) {
      if (request == MPI_REQUEST_NULL) continue;
      lanes_->requests.add(request, {Lane::head_in, false, peer, 0});
      request = MPI_REQUEST_NULL;
    }
    drop([&](const Pending& what) { return what.peer == peer && what.lane == Lane::head_in; });
  }

  // --- Closing ---

  /// Says goodbye to who has got all heads. It goes by MPI, behind the bodies, wherever the heads went.
  void part() {
    const Rings::Call call(rings_);
    for (Rank peer = 0; peer < size_; ++peer) {
      Peer& other = peer_of(peer);
      if (peer == rank_ || other.failed || other.goodbye_sent || lanes_->mail.keeps(peer)) continue;
      other.goodbye_sent = true;
      post_by_mpi(peer, HeadKind::goodbye);
    }
  }

  bool any_failed() const {
    return std::any_of(lanes_->peers.begin(), lanes_->peers.end(), [](const Peer& peer) { return peer.failed; });
  }

  bool ended() const {
    for (Rank peer = 0; peer < size_; ++peer) {
      const Peer& other = peer_of(peer);
      if (peer == rank_ || other.failed) continue;
      if (!other.left || !other.goodbye_sent) return false;
    }
    const auto& pending = lanes_->requests.pending();
    return std::all_of(pending.begin(), pending.end(), [&](const Pending& what) { return peer_of(what.peer).failed; });
  }

  /// Takes bodies that were sent to us but never accepted, so that their senders' requests end.
  bool receive_unaccepted() {
    bool any = false;
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || peer_of(peer).failed) continue;
      int there = 0, bytes = 0;
      MPI_Status status;
      if (MPI_Iprobe(static_cast<int>(peer), kBodyTag, lanes_->session.comm, &there, &status) != MPI_SUCCESS || !there)
        continue;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      auto& memory = lanes_->unaccepted.emplace_back(new std::byte[static_cast<std::size_t>(bytes)]);
      MPI_Request request = MPI_REQUEST_NULL;
      if (MPI_Irecv(memory.get(), bytes, MPI_BYTE, static_cast<int>(peer), kBodyTag, lanes_->session.comm, &request) !=
          MPI_SUCCESS)
        continue;
      lanes_->requests.add(request, {Lane::body_in, true, peer, 0});
      any = true;
    }
    return any;
  }

  std::unique_ptr<Lanes> lanes_;  ///< null after close
  const Rank rank_;
  const Rank size_;
  Doorbell bell_;
  Rings rings_;
  TransportCounters counters_;
  int sending_ = 0;                                  ///< requests on their way out that somebody waits for
  std::uint64_t arriving_ = 0;                       ///< announced, accepted, incomplete bodies
  std::vector<Completion> done_;                     ///< collected, not reported
  std::vector<Completion> reporting_;                ///< scratch of report_done
  std::vector<std::pair<Rank, std::string>> downs_;  ///< not reported
};

}  // namespace
}  // namespace mpi

std::unique_ptr<Transport> connect_mpi(int session_tag, std::vector<int> peers, bool share_memory) {
  if (peers.empty()) {
    peers.resize(static_cast<std::size_t>(mpi::Environment::get().size()));
    std::iota(peers.begin(), peers.end(), 0);
  }
  return std::make_unique<mpi::MpiTransport>(mpi::connect_session(session_tag, peers, share_memory));
}

}  // namespace casync::transport
