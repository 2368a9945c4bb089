#include "transport/mpi/session_comm.hpp"

#include <algorithm>
#include <memory>

#include "casync/error.hpp"
#include "transport/mpi/environment.hpp"

namespace casync::transport::mpi {
namespace {

constexpr int kSetupTag = 3;

/// Every rank gives a word, every rank gets all. If a peer fails, MPI may still use the words: they are abandoned to
/// it.
std::vector<std::uint64_t> exchange(const SessionComm& session, std::uint64_t own) {
  struct Words {
    std::uint64_t own;
    std::vector<std::uint64_t> all;
    std::vector<MPI_Request> requests;
  };
  auto words = std::make_unique<Words>(Words{own, std::vector<std::uint64_t>(session.size, own), {}});
  int code = MPI_SUCCESS;
  for (Rank step = 1; step < session.size && code == MPI_SUCCESS; ++step) {
    const Rank source = (session.rank + session.size - step) % session.size;
    code = MPI_Irecv(&words->all[source], 1, MPI_UINT64_T, static_cast<int>(source), kSetupTag, session.comm,
                     &words->requests.emplace_back());
  }
  for (Rank step = 1; step < session.size && code == MPI_SUCCESS; ++step) {
    const Rank target = (session.rank + step) % session.size;
    code = MPI_Isend(&words->own, 1, MPI_UINT64_T, static_cast<int>(target), kSetupTag, session.comm,
                     &words->requests.emplace_back());
  }
  if (code == MPI_SUCCESS) {
    code = MPI_Waitall(static_cast<int>(words->requests.size()), words->requests.data(), MPI_STATUSES_IGNORE);
  }
  if (code != MPI_SUCCESS) {
    Environment::note_failure();
    static_cast<void>(words.release());
    check(code, "Connecting a session");
  }
  return std::move(words->all);
}

}  // namespace

SessionComm connect_session(int session_tag, const std::vector<int>& peers, bool share_memory) {
  int* limit = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&limit), &known);
  if (session_tag < 0 || (known && session_tag > *limit)) {
    throw InvalidArgument(detail::concat("session_tag ", session_tag, " is not in 0..", known ? *limit : 32767));
  }
  const Environment& environment = Environment::get();
  for (const int peer : peers) {
    if (peer < 0 || peer >= environment.size() || std::count(peers.begin(), peers.end(), peer) != 1) {
      throw InvalidArgument(detail::concat("peers must be distinct ranks below ", environment.size(), "; got ", peer));
    }
  }
  if (std::find(peers.begin(), peers.end(), environment.rank()) == peers.end()) {
    throw InvalidArgument(detail::concat("rank ", environment.rank(), " connects a session that it is not in"));
  }

  SessionComm session;
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(peers.size()), peers.data(), &group);
  const int created = MPI_Comm_create_group(MPI_COMM_WORLD, group, session_tag, &session.comm);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  check(created, "MPI_Comm_create_group");
  MPI_Comm_set_errhandler(session.comm, MPI_ERRORS_RETURN);
  int rank = 0, size = 0;
  MPI_Comm_rank(session.comm, &rank);
  MPI_Comm_size(session.comm, &size);
  session.rank = static_cast<Rank>(rank);
  session.size = static_cast<Rank>(size);
  std::vector<int> hosts;
  for (const int peer : peers) hosts.push_back(environment.hosts()[static_cast<std::size_t>(peer)]);
  session.host = host::meet_neighbours(session.rank, hosts, session_tag, share_memory,
                                       [&](std::uint64_t own) { return exchange(session, own); });
  return session;
}

}  // namespace casync::transport::mpi
