#include "common/thread_time.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <ctime>
#include <string_view>

namespace casync {
namespace {

/// The second number of /proc/thread-self/schedstat, which stays open as long as the thread lives.
class RunQueue {
 public:
  RunQueue() : file_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~RunQueue() {
    if (file_ >= 0) close(file_);
  }
  RunQueue(const RunQueue&) = delete;
  RunQueue& operator=(const RunQueue&) = delete;

  Nanoseconds waited() const {
    char buffer[96];
    const ssize_t size = file_ < 0 ? -1 : pread(file_, buffer, sizeof(buffer), 0);
    if (size <= 0) return 0;
    const std::string_view text(buffer, static_cast<std::size_t>(size));
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) return 0;
    Nanoseconds waited = 0;
    std::from_chars(text.data() + space + 1, text.data() + text.size(), waited);
    return waited;
  }

 private:
  int file_;
};

thread_local Nanoseconds worked_in_core = 0;

}  // namespace

ThreadTime thread_time() {
  static thread_local const RunQueue queue;
  timespec worked{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &worked);
  return {static_cast<Nanoseconds>(worked.tv_sec) * 1'000'000'000 + worked.tv_nsec, queue.waited()};
}

ThreadMoment program_time() {
  const ThreadTime time = thread_time();
  return {&worked_in_core, time.worked - worked_in_core, time.waited + worked_in_core};
}

CoreScope::~CoreScope() { worked_in_core += worked(); }

}  // namespace casync
