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
  cell.word.fetch_add(1);
  if (cell.sleeping.load() != 0) futex(cell.word, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(Nanoseconds timeout) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  if (timeout > 0) {
    cell_->sleeping.store(1);
    if (cell_->word.load() == seen_) {
      const timespec relative{.tv_sec = timeout / kSecond, .tv_nsec = timeout % kSecond};
      futex(cell_->word, FUTEX_WAIT, seen_, &relative);
    }
    cell_->sleeping.store(0);
  }
  seen_ = cell_->word.load();
}

}  // namespace casync::transport
