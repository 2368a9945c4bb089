#include "transport/host/host_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "casync/error.hpp"
#include "transport/host/heads.hpp"
#include "transport/mailbox.hpp"

namespace casync::transport::host {
namespace {

/// Of all mailboxes of a session on a host. A session takes a part of what is free besides: containers often have 64
/// MiB of shared memory, in which several sessions and a data loader must find room.
constexpr std::size_t kMailBytes = std::size_t{16} << 20;
constexpr std::size_t kFreePart = 8;
constexpr std::size_t kLargestBox = 256 * 1024;
constexpr std::size_t kSmallestBox = mailbox_bytes(kHeadBytes);

std::size_t boxes(int ranks) { return static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks - 1); }

/// In a file system with `free` bytes; 0 if there is no room for useful ones.
std::size_t box_bytes_for(int ranks, std::size_t free) {
  const std::size_t fair = std::min(kMailBytes, free / kFreePart) / std::max<std::size_t>(1, boxes(ranks));
  const std::size_t bytes = std::min(kLargestBox, fair) / alignof(MailboxCell) * alignof(MailboxCell);
  return bytes < kSmallestBox ? 0 : bytes;
}

std::size_t free_bytes(int descriptor) {
  struct statvfs info{};
  return fstatvfs(descriptor, &info) == 0 ? info.f_bavail * info.f_frsize : 0;
}

/// posix_fallocate: a full /dev/shm is an error here, not a SIGBUS at the first ring.
bool allocate(int descriptor, std::size_t bytes) {
  int code = EINTR;
  while (code == EINTR) code = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  return code == 0;
}

}  // namespace

/// The head of the mapping; the bells follow, then the mailboxes.
struct alignas(64) HostMemory::Segment {
  std::atomic<std::uint64_t> nonce;
};

HostMemory::HostMemory(Segment* segment, int ranks, std::size_t box_bytes)
    : segment_(segment), ranks_(ranks), box_bytes_(box_bytes), bells_(reinterpret_cast<DoorbellCell*>(segment + 1)) {}

HostMemory::~HostMemory() { munmap(segment_, size(ranks_, box_bytes_)); }

std::size_t HostMemory::size(int ranks, std::size_t box_bytes) {
  return sizeof(Segment) + static_cast<std::size_t>(ranks) * sizeof(DoorbellCell) + boxes(ranks) * box_bytes;
}

std::span<std::byte> HostMemory::mailbox(int from, int to) {
  if (box_bytes_ == 0) return {};
  const auto box = static_cast<std::size_t>(from * (ranks_ - 1) + (to < from ? to : to - 1));
  return {reinterpret_cast<std::byte*>(bells_ + ranks_) + box * box_bytes_, box_bytes_};
}

std::unique_ptr<HostMemory> HostMemory::map(int descriptor, int ranks, std::size_t box_bytes) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, size(ranks, box_bytes), PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<HostMemory>(new HostMemory(static_cast<Segment*>(memory), ranks, box_bytes));
}

std::unique_ptr<HostMemory> HostMemory::create(const std::string& name, int ranks, std::uint64_t nonce) {
  const int descriptor = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<HostMemory> memory;
  for (const std::size_t box_bytes : {box_bytes_for(ranks, free_bytes(descriptor)), std::size_t{0}}) {
    if (!memory && ftruncate(descriptor, 0) == 0 && allocate(descriptor, size(ranks, box_bytes)))
      memory = map(descriptor, ranks, box_bytes);
  }
  close(descriptor);
  if (memory) {
    memory->segment_->nonce = nonce;
  } else {
    shm_unlink(name.c_str());
  }
  return memory;
}

std::unique_ptr<HostMemory> HostMemory::open(const std::string& name, int ranks, std::uint64_t nonce) {
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (descriptor < 0) return nullptr;
  std::unique_ptr<HostMemory> memory;
  struct stat info{};
  if (fstat(descriptor, &info) == 0 && info.st_size >= static_cast<off_t>(size(ranks, 0))) {
    // The leader found out how large the boxes can be.
    const std::size_t rest = static_cast<std::size_t>(info.st_size) - size(ranks, 0);
    const std::size_t box_bytes = rest / std::max<std::size_t>(1, boxes(ranks));
    const bool whole = box_bytes * boxes(ranks) == rest && box_bytes % alignof(MailboxCell) == 0;
    if (whole && (rest == 0 || box_bytes >= kSmallestBox)) memory = map(descriptor, ranks, box_bytes);
  }
  close(descriptor);
  if (memory && memory->segment_->nonce != nonce) memory.reset();
  return memory;
}

void HostMemory::unlink(const std::string& name) { shm_unlink(name.c_str()); }

std::unique_ptr<HostMemory> HostMemory::own() {
  auto memory = map(-1, 1, 0);
  if (!memory) throw Error("no memory for a doorbell");
  return memory;
}

}  // namespace casync::transport::host
