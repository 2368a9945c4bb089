#include "memory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

namespace standin::memory {
namespace {

constexpr std::size_t kRoom = std::size_t{16} << 30;
constexpr std::size_t kAside = std::size_t{256} << 20;  // freed bytes that are not given out again
constexpr std::size_t kAlignment = 512;

struct Block {
  std::size_t bytes;
  int device;
  bool is_free;
};

class Devices {
 public:
  Devices() {
    void* const both = mmap(nullptr, 2 * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    file_ = memfd_create("stand-in for the memory of a device", MFD_CLOEXEC);
    if (both == MAP_FAILED || file_ < 0 || ftruncate(file_, kRoom) != 0 ||
        mmap(static_cast<char*>(both) + kRoom, kRoom, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
             file_, 0) == MAP_FAILED) {
      std::perror("stand-in for CUDA: no room for the memory of a device");
      std::abort();
    }
    begin_ = reinterpret_cast<std::uint64_t>(both);
    next_ = begin_;
  }

  std::uint64_t begin() const { return begin_; }

  std::uint64_t allocate(std::size_t bytes, int device) {
    const std::lock_guard lock(mutex_);
    const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    std::uint64_t address = 0;
    if (const auto at = free_.find(size); at != free_.end() && !at->second.empty()) {
      address = at->second.front();
      at->second.pop_front();
    } else if (next_ + size <= begin_ + kRoom) {
      address = next_;
      next_ += size;
    } else {
      return 0;
    }
    blocks_[address] = {bytes, device, false};
    in_use_ += bytes;
    return address;
  }

  bool free(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(address);
    if (at == blocks_.end() || at->second.is_free) return false;
    std::memset(bytes_of(address), 0xFF, at->second.bytes);
    at->second.is_free = true;
    in_use_ -= at->second.bytes;
    aside_ += at->second.bytes;
    freed_.push_back(address);
    while (aside_ > kAside) {
      const std::uint64_t oldest = freed_.front();
      freed_.pop_front();
      const std::size_t bytes = blocks_[oldest].bytes;
      aside_ -= bytes;
      free_[(bytes + kAlignment - 1) / kAlignment * kAlignment].push_back(oldest);
    }
    return true;
  }

  Shared share(std::uint64_t address) {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(address);
    if (at == blocks_.end() || at->second.is_free) return {};
    return {getpid(), file_, address - begin_, at->second.bytes};
  }

  std::uint64_t open(const Shared& what) {
    constexpr std::uint64_t kPage = 4096;
    if (what.owner == getpid()) return begin_ + what.offset;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", what.owner, what.file);
    const int theirs = ::open(path, O_RDWR | O_CLOEXEC);
    if (theirs < 0) return 0;
    const std::lock_guard lock(mutex_);
    const std::uint64_t before = what.offset % kPage;
    const std::uint64_t size = (before + what.bytes + kPage - 1) / kPage * kPage;
    const std::uint64_t address = (next_ + kPage - 1) / kPage * kPage;
    const bool is_there = address + size <= begin_ + kRoom &&
                          mmap(bytes_of(address), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, theirs,
                               static_cast<off_t>(what.offset - before)) != MAP_FAILED;
    close(theirs);
    if (!is_there) return 0;
    next_ = address + size;
    blocks_[address + before] = {what.bytes, -1, false};
    return address + before;
  }

  bool holds(std::uint64_t address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto at = blocks_.upper_bound(address);
    if (at == blocks_.begin()) return false;
    --at;
    return !at->second.is_free && address + bytes <= at->first + at->second.bytes;
  }

  std::size_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }

  /// In a signal handler: no lock, so it may be wrong while another thread allocates.
  void explain(std::uint64_t address) const {
    char text[256];
    auto at = blocks_.upper_bound(address);
    int length = 0;
    if (at == blocks_.begin()) {
      length = std::snprintf(text, sizeof text, "stand-in for CUDA: the host used device memory at %#llx\n",
                             static_cast<unsigned long long>(address));
    } else {
      --at;
      length = std::snprintf(text, sizeof text,
                             "stand-in for CUDA: the host used device memory: byte %llu of %zu%s on device %d\n",
                             static_cast<unsigned long long>(address - at->first), at->second.bytes,
                             at->second.is_free ? " that were freed" : "", at->second.device);
    }
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<std::size_t>(length));
  }

 private:
  std::mutex mutex_;
  std::uint64_t begin_ = 0;
  std::uint64_t next_ = 0;
  int file_ = -1;
  std::map<std::uint64_t, Block> blocks_;
  std::map<std::size_t, std::deque<std::uint64_t>> free_;  // by size
  std::deque<std::uint64_t> freed_;
  std::size_t aside_ = 0;
  std::size_t in_use_ = 0;
};

Devices& devices();

struct sigaction before;

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
  if (is_device(address)) devices().explain(address);
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  sigaction(signal, &before, nullptr);  // the instruction runs again, and faults as it would have
}

Devices& devices() {
  static auto& made = *[] {
    auto* const all = new Devices;  // never freed: kernels of other threads may run at the end of the process
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before);
    return all;
  }();
  return made;
}

}  // namespace

std::uint64_t allocate(std::size_t bytes, int device) { return devices().allocate(bytes, device); }
bool free(std::uint64_t address) { return devices().free(address); }
bool is_device(std::uint64_t address) { return address >= devices().begin() && address < devices().begin() + kRoom; }
bool holds(std::uint64_t address, std::size_t bytes) { return devices().holds(address, bytes); }
std::byte* bytes_of(std::uint64_t address) { return reinterpret_cast<std::byte*>(address + kRoom); }
std::int64_t distance() {
  devices();
  return static_cast<std::int64_t>(kRoom);
}
Shared share(std::uint64_t address) { return devices().share(address); }
std::uint64_t open(const Shared& what) { return devices().open(what); }
std::size_t in_use() { return devices().in_use(); }

}  // namespace standin::memory
