#pragma once

#include <string>
#include <vector>

/// MPI as this process has it. The only global of CaSync, because MPI itself is one.
namespace casync::transport::mpi {

/// Initialises MPI when first asked for (with MPI_THREAD_MULTIPLE, unless the program has done so), never in a shutdown
/// finalises it, and settles how the process leaves. Any thread; the first `get` is collective over all processes of
/// mpirun.
///
/// Leaving: mpirun takes a process that leaves without MPI_Finalize for a failed one (without --with-ft ulfm it ends
/// the job, exit status 1), and after a fault MPI_Finalize may never return. So `leave` finalises only after all
/// processes have told rank 0 that they leave in good order; that wait has no limit, as MPI_Finalize has none, but it
/// ends at a peer's death.
class Environment {
 public:
  static Environment& get();

  int rank() const { return rank_; }
  int size() const { return size_; }
  int thread_level() const { return thread_level_; }
  /// Per process of the world, the lowest rank that shares its host (hostname and boot id).
  const std::vector<int>& hosts() const { return hosts_; }
  static std::string library_version();

  /// A peer died or a session ended by an error: this process will leave without MPI_Finalize.
  static void note_failure();
  /// Once, at the end of the process. `in_order` is false when the program ends by an exception.
  static void leave(bool in_order);

 private:
  Environment();
  bool all_leave_in_order(bool self) const;

  int rank_ = 0;
  int size_ = 1;
  int thread_level_ = 0;
  bool initialised_here_ = false;
  std::vector<int> hosts_;
};

/// "MPI_ERR_PROC_FAILED: Process Failure (class 75)", or what the library calls it.
std::string error_text(int code);

/// Throws PeerFailure naming the call, unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

}  // namespace casync::transport::mpi
