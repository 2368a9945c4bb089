#include "transport/mpi/environment.hpp"

#include <mpi.h>
#include <signal.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "casync/error.hpp"
#include "common/boot_id.hpp"

namespace casync::transport::mpi {
namespace {

constexpr int kLeaveTag = 32001;

std::atomic<bool> used{false};
std::atomic<bool> failed{false};

/// Equal exactly on the processes that can share memory: containers differ by name, machines by boot id.
std::array<char, 320> host_key() {
  std::array<char, 320> key{};
  gethostname(key.data(), 255);
  std::strncat(key.data(), boot_id().c_str(), 60);
  return key;
}

/// Open MPI writes to sockets of dead peers without MSG_NOSIGNAL; unless the program handles SIGPIPE (Python ignores
/// it), that would end the process. The error reaches us as that of a request.
void ignore_broken_pipes() {
  struct sigaction now{};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

/// Ranks of MPI_COMM_WORLD that are known here to have died. None where this MPI cannot say.
std::vector<int> dead_ranks() {
  std::vector<int> dead;
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  MPI_Group world = MPI_GROUP_NULL, gone = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (MPIX_Comm_get_failed(MPI_COMM_WORLD, &gone) == MPI_SUCCESS) {
    int count = 0;
    MPI_Group_size(gone, &count);
    std::vector<int> places(static_cast<std::size_t>(count));
    for (int place = 0; place < count; ++place) places[static_cast<std::size_t>(place)] = place;
    dead.resize(places.size());
    MPI_Group_translate_ranks(gone, count, places.data(), world, dead.data());
    MPI_Group_free(&gone);
  }
  MPI_Group_free(&world);
#endif
  return dead;
}

/// Tests `request` with growing sleeps; false if the other side is gone.
bool patiently(MPI_Request request) {
  auto pause = std::chrono::microseconds(50);
  for (;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
    if (done) return true;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(10'000));
  }
}

}  // namespace

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, error_class = code;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &error_class);
  return detail::concat(text, " (class ", error_class, ")");
}

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  const std::vector<int> dead = dead_ranks();
  std::string who;
  for (const int rank : dead) who += detail::concat("rank ", rank, " has died: ");
  ErrorFacts facts;
  if (!dead.empty()) facts.peer = static_cast<Rank>(dead.front());
  throw PeerFailure(detail::concat(who, call, " failed: ", error_text(code)), std::move(facts));
}

Environment& Environment::get() {
  static Environment environment;
  return environment;
}

Environment::Environment() {
  int initialised = 0, finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised) throw Error("MPI has been finalised in this process and cannot be started again");
  MPI_Initialized(&initialised);
  if (initialised) {
    MPI_Query_thread(&thread_level_);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_);
    initialised_here_ = true;
    ignore_broken_pipes();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  if (thread_level_ < MPI_THREAD_MULTIPLE) {
    throw Error(detail::concat("MPI provides thread level ", thread_level_, " but CaSync needs MPI_THREAD_MULTIPLE (",
                               MPI_THREAD_MULTIPLE, "): initialise MPI with that level, or let CaSync do it; this is ",
                               library_version()));
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);

  auto own = host_key();
  std::vector<std::array<char, 320>> keys(static_cast<std::size_t>(size_));
  check(MPI_Allgather(own.data(), static_cast<int>(own.size()), MPI_CHAR, keys.data(), static_cast<int>(own.size()),
                      MPI_CHAR, MPI_COMM_WORLD),
        "MPI_Allgather");
  for (const auto& key : keys) {
    hosts_.push_back(static_cast<int>(std::find(keys.begin(), keys.end(), key) - keys.begin()));
  }
  used = true;
}

std::string Environment::library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

void Environment::note_failure() { failed = true; }

void Environment::leave(bool in_order) {
  if (!used || !get().initialised_here_) return;
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised) return;
  if (get().all_leave_in_order(in_order && !failed)) MPI_Finalize();
}

/// Rank 0 hears of everybody and tells everybody. Who is not in order says so and does not wait: ULFM notices a process
/// that was killed, but not one that exited.
bool Environment::all_leave_in_order(bool self) const {
  char word = self ? 1 : 0;
  MPI_Request request = MPI_REQUEST_NULL;
  if (rank_ != 0) {
    if (MPI_Send(&word, 1, MPI_CHAR, 0, kLeaveTag, MPI_COMM_WORLD) != MPI_SUCCESS || !self) return false;
    if (MPI_Irecv(&word, 1, MPI_CHAR, 0, kLeaveTag, MPI_COMM_WORLD, &request) != MPI_SUCCESS) return false;
    return patiently(request) && word == 1;
  }
  bool all = self;
  for (int peer = 1; peer < size_ && all; ++peer) {
    all = MPI_Irecv(&word, 1, MPI_CHAR, peer, kLeaveTag, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
          patiently(request) && word == 1;
  }
  word = all ? 1 : 0;
  for (int peer = 1; peer < size_; ++peer) MPI_Send(&word, 1, MPI_CHAR, peer, kLeaveTag, MPI_COMM_WORLD);
  return all;
}

}  // namespace casync::transport::mpi
