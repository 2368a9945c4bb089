#include "transport/mpi/host_bells.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "casync/error.hpp"

namespace casync::transport::mpi {

/// The head of the mapping; the cells follow.
struct alignas(64) HostBells::Segment {
  std::atomic<std::uint64_t> nonce;
};

HostBells::HostBells(Segment* segment, std::size_t bytes)
    : segment_(segment), bytes_(bytes), cells_(reinterpret_cast<DoorbellCell*>(segment + 1)) {}

HostBells::~HostBells() { munmap(segment_, bytes_); }

std::unique_ptr<HostBells> HostBells::map(int descriptor, std::size_t bytes) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<HostBells>(new HostBells(static_cast<Segment*>(memory), bytes));
}

std::unique_ptr<HostBells> HostBells::create(const std::string& name, int cells, std::uint64_t nonce) {
  const std::size_t bytes = sizeof(Segment) + static_cast<std::size_t>(cells) * sizeof(DoorbellCell);
  const int descriptor = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<HostBells> bells;
  // posix_fallocate: a full /dev/shm is an error here, not a SIGBUS at the first ring.
  if (posix_fallocate(descriptor, 0, static_cast<off_t>(bytes)) == 0) bells = map(descriptor, bytes);
  close(descriptor);
  if (bells) {
    bells->segment_->nonce = nonce;
  } else {
    shm_unlink(name.c_str());
  }
  return bells;
}

std::unique_ptr<HostBells> HostBells::open(const std::string& name, int cells, std::uint64_t nonce) {
  const std::size_t bytes = sizeof(Segment) + static_cast<std::size_t>(cells) * sizeof(DoorbellCell);
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<HostBells> bells;
  struct stat info{};
  if (fstat(descriptor, &info) == 0 && info.st_size == static_cast<off_t>(bytes)) bells = map(descriptor, bytes);
  close(descriptor);
  if (bells && bells->segment_->nonce != nonce) bells.reset();
  return bells;
}

void HostBells::unlink(const std::string& name) { shm_unlink(name.c_str()); }

std::unique_ptr<HostBells> HostBells::own() {
  auto bells = map(-1, sizeof(Segment) + sizeof(DoorbellCell));
  if (!bells) throw Error("no memory for a doorbell");
  return bells;
}

}  // namespace casync::transport::mpi
