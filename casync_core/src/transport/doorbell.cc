#include "transport/doorbell.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace casync::transport {
namespace {

// Not FUTEX_PRIVATE_FLAG: the word may belong to another process.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void ring(DoorbellCell& cell) {
  if (count_ring(cell)) futex(cell.word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(Nanoseconds timeout) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  wait_by([&] {
    if (timeout <= 0) return;
    const timespec relative{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
    futex(cell_->word, FUTEX_WAIT, seen_, &relative);
  });
}

}  // namespace casync::transport
