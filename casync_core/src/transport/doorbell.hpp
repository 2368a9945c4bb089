#pragma once

#include <atomic>
#include <cstdint>

#include "casync/types.hpp"

/// Where one thread sleeps and any thread, of this process or another one on the host, wakes it. Shared by all
/// transports.
namespace casync::transport {

/// Plain memory: valid when zeroed, may lie in a segment that several processes map.
struct alignas(64) DoorbellCell {
  std::atomic<std::uint32_t> word{0};      ///< counts rings
  std::atomic<std::uint32_t> sleeping{0};  ///< 1 while the owner may be inside the kernel
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Any thread. Counts a ring; true if the owner may sleep, and must be woken by the means by which it does.
inline bool count_ring(DoorbellCell& cell) {
  cell.word.fetch_add(1);
  return cell.sleeping.load() != 0;
}

/// Any thread, where the owner sleeps in `Doorbell::wait`. Two atomic operations; a system call only if it sleeps.
void ring(DoorbellCell& cell);

/// The owner's side of a cell; one thread at a time.
///
/// Wake-up conditions, and why none is lost:
///  1. A ring before `wait` but after the previous `wait` returned: `word` differs from `seen_`, so `wait` does not
///     sleep.
///  2. A ring between the comparison in `wait` and the kernel's: FUTEX_WAIT compares `word` again under its own lock.
///  3. A ring that saw `sleeping == 0` and makes no system call: it incremented `word` first, and the owner stored
///     `sleeping` before it read `word` (all sequentially consistent), so the owner sees the new `word`: condition 1 or
///     2.
///  4. The timeout.
class Doorbell {
 public:
  explicit Doorbell(DoorbellCell& cell) : cell_(&cell), seen_(cell.word.load()) {}

  /// Sleeps until a ring since the previous return, or `timeout`; may return early.
  void wait(Nanoseconds timeout);

  /// The same with another way to sleep, which whoever rings ends: it must return at once if it was ended since
  /// `sleeping` was stored.
  template <typename Sleep>
  void wait_by(Sleep sleep) {
    cell_->sleeping.store(1);
    if (cell_->word.load() == seen_) sleep();
    cell_->sleeping.store(0);
    seen_ = cell_->word.load();
  }

 private:
  DoorbellCell* cell_;
  std::uint32_t seen_;
};

}  // namespace casync::transport
