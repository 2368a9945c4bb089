#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "transport/host/heads.hpp"
#include "transport/host/host_mail.hpp"
#include "transport/mpi/requests.hpp"
#include "transport/mpi/session_comm.hpp"
#include "transport/standing.hpp"

/// Memory and bookkeeping of one session that MPI may touch until its requests have ended.
namespace casync::transport::mpi {

using host::kWireHeadBytes;

/// Bodies above this are announced, so that their receiver knows that bytes are on their way and polls for them.
inline constexpr std::size_t kAnnouncedBytes = 64 * 1024;

/// Above this, MPI may need the receiver's answer before the sender's request completes.
inline constexpr int kAnswerBytes = 1024;

/// One request moves at most this; MPI counts are ints.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

struct Peer : Standing {
  // Announced bodies sent by the peer, large accepts, and large bodies complete. The n-th of each are the same body.
  std::uint64_t announced = 0, accepted = 0, completed = 0;
  // Receives posted for heads: a ring in the order posted, of which only the oldest is tested.
  std::size_t oldest = 0;
  std::vector<MPI_Request> posted;
  std::unique_ptr<std::byte[]> heads;

  std::byte* head(std::size_t index) { return heads.get() + index * kWireHeadBytes; }
  std::uint64_t arriving() const {
    const std::uint64_t known = announced < accepted ? announced : accepted;
    return known > completed ? known - completed : 0;
  }
};

/// A body of the user's, on its way out or in.
struct Body {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  std::size_t done_bytes = 0;
  std::uint32_t pieces = 0;
};

/// Slots reused in any order; indices stay valid.
template <typename T>
class Slots {
 public:
  std::uint32_t take() {
    if (free_.empty()) {
      slots_.push_back(std::make_unique<T>());
      return static_cast<std::uint32_t>(slots_.size() - 1);
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(std::uint32_t slot) { free_.push_back(slot); }
  T& operator[](std::uint32_t slot) { return *slots_[slot]; }

 private:
  std::vector<std::unique_ptr<T>> slots_;
  std::vector<std::uint32_t> free_;
};

/// The communicator with everything posted on it.
struct Lanes {
  explicit Lanes(SessionComm connected) : session(std::move(connected)), peers(session.size) {}

  /// Receives of heads to post for a peer: about 4 MiB of (untouched) memory in all, between 2 and 8. Where heads come
  /// by mail the one receive meets nothing but the goodbye, and has MPI tell when the peer is gone.
  std::size_t depth(Rank peer) const {
    if (mail.reaches(peer)) return 1;
    const std::size_t fair = std::size_t{128} / session.size;
    return fair < 2 ? 2 : fair > 8 ? 8 : fair;
  }

  SessionComm session;
  host::HostMail mail{session.rank, session.host};
  Requests requests;
  std::vector<Peer> peers;
  Slots<std::vector<std::byte>> head_buffers;
  Slots<Body> bodies;
  std::vector<std::unique_ptr<std::byte[]>> unaccepted;  ///< memory for bodies that nobody accepted, during close
};

/// Keeps what MPI may still touch until the process ends. Any thread.
inline void retire(std::unique_ptr<Lanes> lanes) {
  static std::mutex mutex;
  static auto* const retired = new std::vector<std::unique_ptr<Lanes>>;
  const std::lock_guard lock(mutex);
  retired->push_back(std::move(lanes));
}

}  // namespace casync::transport::mpi
