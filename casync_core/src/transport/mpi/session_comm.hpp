#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/mpi/host_bells.hpp"

/// How the processes of a session find each other: a communicator, and the doorbells of this rank's host.
namespace casync::transport::mpi {

inline constexpr int kHeadTag = 1;
inline constexpr int kBodyTag = 2;

struct SessionComm {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<int> cells;            ///< per rank its doorbell in `bells`, or -1 if it is on another host
  std::unique_ptr<HostBells> bells;  ///< never null; has at least this rank's cell
};

/// Collective over `peers` (world ranks). Speaks with every peer directly, so that connections exist before the first
/// gradient. A failed connect costs one communicator.
SessionComm connect_session(int session_tag, const std::vector<int>& peers);

}  // namespace casync::transport::mpi
