#pragma once

#include <mpi.h>

#include <vector>

#include "transport/host/neighbours.hpp"

/// How the processes of a session find each other: a communicator, and what the ranks of one host share.
namespace casync::transport::mpi {

inline constexpr int kHeadTag = 1;
inline constexpr int kBodyTag = 2;

struct SessionComm {
  MPI_Comm comm = MPI_COMM_NULL;
  Rank rank = 0;
  Rank size = 1;
  host::Neighbours host;
};

/// Collective over `peers` (world ranks). Speaks with every peer directly, so that connections exist before the first
/// gradient. A failed connect costs one communicator.
SessionComm connect_session(int session_tag, const std::vector<int>& peers, bool share_memory);

}  // namespace casync::transport::mpi
