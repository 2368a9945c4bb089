#include "transport/mpi/requests.hpp"

#include <algorithm>
#include <functional>

namespace casync::transport::mpi {
namespace {

Completion completion(const Pending& what, const MPI_Status& status, int error) {
  Completion done{what, error, 0};
  if (error == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &done.bytes);
  return done;
}

}  // namespace

void Requests::add(MPI_Request request, Pending what) {
  requests_.push_back(request);
  pending_.push_back(what);
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
}

void Requests::remove(std::size_t index) {
  // Open MPI leaves a failed request as it is. Freeing it would end the process ("Send error after request freed") when
  // the connection finds out about the death as well, so it is forgotten instead.
  requests_[index] = requests_.back();
  pending_[index] = pending_.back();
  requests_.pop_back();
  pending_.pop_back();
}

std::size_t Requests::collect(std::vector<Completion>& out) {
  if (requests_.empty()) return 0;
  int count = 0, code = MPI_SUCCESS;
  // A test that finds nothing makes progress, but looks no further: what that progress completed is found by the second
  // one.
  for (int pass = 0; pass < 2 && count == 0; ++pass) {
    code =
        MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(), statuses_.data());
    if (count == MPI_UNDEFINED) count = 0;
  }
  if (code != MPI_SUCCESS && count == 0) return collect_one_by_one(out);
  const auto n = static_cast<std::size_t>(count);
  for (std::size_t i = 0; i < n; ++i) {
    const int error = code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[i].MPI_ERROR;
    out.push_back(completion(pending_[static_cast<std::size_t>(indices_[i])], statuses_[i], error));
  }
  std::sort(indices_.begin(), indices_.begin() + count, std::greater<>());
  for (std::size_t i = 0; i < n; ++i) remove(static_cast<std::size_t>(indices_[i]));
  return n;
}

std::size_t Requests::collect_one_by_one(std::vector<Completion>& out) {
  const std::size_t before = out.size();
  for (std::size_t i = requests_.size(); i-- > 0;) {
    int done = 0;
    MPI_Status status;
    const int error = MPI_Test(&requests_[i], &done, &status);
    if (error == MPI_SUCCESS && !done) continue;
    out.push_back(completion(pending_[i], status, error));
    remove(i);
  }
  return out.size() - before;
}

bool Requests::test(const Pending& what, Completion& out) {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].lane != what.lane || pending_[i].peer != what.peer || pending_[i].slot != what.slot) continue;
    int done = 0;
    MPI_Status status;
    const int error = MPI_Test(&requests_[i], &done, &status);
    if (error == MPI_SUCCESS && !done) return false;
    out = completion(pending_[i], status, error);
    remove(i);
    return true;
  }
  return false;
}

}  // namespace casync::transport::mpi
