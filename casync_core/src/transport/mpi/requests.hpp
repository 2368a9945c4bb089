#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "casync/types.hpp"

/// The MPI requests a transport waits for, tested together.
namespace casync::transport::mpi {

enum class Lane : std::uint8_t { head_in, head_out, body_in, body_out };

/// What a request is for. `slot` is the owner's: a head buffer or a body.
struct Pending {
  Lane lane;
  bool dropped;  ///< nobody waits for it any more; kept until MPI lets go of the memory
  Rank peer;
  std::uint32_t slot;
};

/// Whether it is a send that somebody waits for.
constexpr bool is_send(const Pending& what) {
  return !what.dropped && (what.lane == Lane::head_out || what.lane == Lane::body_out);
}

struct Completion {
  Pending what;
  int error;  ///< MPI_SUCCESS or why the request failed
  int bytes;  ///< received
};

/// One thread. A pass costs one or two MPI_Testsome over what is outstanding; an idle pass of a few peers about a
/// microsecond.
class Requests {
 public:
  void add(MPI_Request request, Pending what);

  /// Appends what has completed; a failed request counts as completed. Returns how many.
  std::size_t collect(std::vector<Completion>& out);

  /// Cancels the receives `which` selects and marks what it selects as dropped. A receive that data flows into already
  /// completes in its own time.
  template <typename Which>
  void drop(Which which) {
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      if (pending_[i].dropped || !which(pending_[i])) continue;
      pending_[i].dropped = true;
      if (pending_[i].lane == Lane::head_in || pending_[i].lane == Lane::body_in) MPI_Cancel(&requests_[i]);
    }
  }

  /// Tests one request; true and `out` filled if it has completed.
  bool test(const Pending& what, Completion& out);

  const std::vector<Pending>& pending() const { return pending_; }

 private:
  /// When the library reports an error without saying whose.
  std::size_t collect_one_by_one(std::vector<Completion>& out);
  void remove(std::size_t index);

  // Parallel; the order has no meaning.
  std::vector<MPI_Request> requests_;
  std::vector<Pending> pending_;
  // Scratch of MPI_Testsome.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace casync::transport::mpi
