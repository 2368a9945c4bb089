#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <utility>

/// Threads of a team or a block that take turns on one thread of the CPU, each from one barrier to the next. The first
/// one that can go on always does (`backwards`: the last), so that a group is as far ahead of the others as barriers
/// let it, and one that is missing shows. A barrier that not all of them reach ends the program.
namespace casync::codec::cuda {

inline bool backwards = false;

class Turns {
 public:
  explicit Turns(int threads) : threads_(threads), thread_(new Thread[threads]), slots_(new std::uint64_t[threads]) {
    for (int rank = 0; rank < threads_; ++rank) make(rank);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void run(const std::function<void(int)>& body) {
    body_ = &body;
    for (int rank = 0; rank < threads_; ++rank) {
      thread_[rank].done = false;
      thread_[rank].at = nullptr;
    }
    for (int left = threads_; left > 0;) {
      const int rank = next();
      if (rank < 0) {
        std::fputs("a barrier that not all threads of a team reach\n", stderr);
        std::abort();
      }
      current_ = rank;
      go_on(thread_[rank]);
      if (thread_[rank].done) --left;
    }
  }

  int threads() const { return threads_; }
  int current() const { return current_; }
  void wait(int rank) { wait_at(all_, threads_, rank); }
  /// For the threads of its group of `size` neighbours.
  void wait_in_group(int rank, int size) { wait_at(groups_[{size, rank / size}], size, rank); }
  std::uint64_t& slot(int rank) { return slots_[rank]; }

 private:
  struct Barrier {
    int arrived = 0;
    int generation = 0;
  };
  struct Thread {
    ucontext_t context;
    void* place[5];  // where it goes on
    bool begun = false;
    bool done = false;
    const Barrier* at = nullptr;
    int generation = 0;

    bool can_go_on() const { return !done && (at == nullptr || at->generation != generation); }
  };
  static constexpr std::size_t kStack = 256 * 1024;

  int next() const {
    for (int turn = 0; turn < threads_; ++turn) {
      const int rank = backwards ? threads_ - 1 - turn : turn;
      if (thread_[rank].can_go_on()) return rank;
    }
    return -1;
  }

  void wait_at(Barrier& barrier, int expected, int rank) {
    thread_[rank].at = &barrier;
    thread_[rank].generation = barrier.generation;
    if (++barrier.arrived == expected) {
      barrier.arrived = 0;
      ++barrier.generation;
    }
    pause(thread_[rank]);
  }

  void make(int rank) {
    Thread& thread = thread_[rank];
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks_.get() + kStack * static_cast<std::size_t>(rank);
    thread.context.uc_stack.ss_size = kStack;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&thread.context, reinterpret_cast<void (*)()>(&entry), 3, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self), rank);
  }
  static void entry(unsigned high, unsigned low, int rank) {
    auto* const self = reinterpret_cast<Turns*>(static_cast<std::uintptr_t>(high) << 32 | low);
    for (;;) {
      (*self->body_)(rank);
      self->thread_[rank].done = true;
      self->pause(self->thread_[rank]);
    }
  }

  /// Until it waits or is done. Its context is entered once, and then jumped to: swapcontext would ask the kernel for
  /// the signals' mask each time, and AddressSanitizer would clean the whole stack.
  [[gnu::noinline, gnu::no_sanitize_address, gnu::no_sanitize_thread]] void go_on(Thread& thread) {
    if (__builtin_setjmp(main_) != 0) return;
    if (thread.begun) jump(thread.place);
    thread.begun = true;
    setcontext(&thread.context);
  }
  [[gnu::noinline, gnu::no_sanitize_address, gnu::no_sanitize_thread]] void pause(Thread& thread) {
    if (__builtin_setjmp(thread.place) == 0) jump(main_);
  }
  [[noreturn, gnu::noinline, gnu::no_sanitize_address, gnu::no_sanitize_thread]] static void jump(void** place) {
    __builtin_longjmp(place, 1);
  }

  int threads_;
  int current_ = 0;
  const std::function<void(int)>* body_ = nullptr;
  void* main_[5];  // where run() goes on
  std::unique_ptr<Thread[]> thread_;
  std::unique_ptr<std::uint64_t[]> slots_;
  std::unique_ptr<char[]> stacks_{new char[kStack * static_cast<std::size_t>(threads_)]};
  Barrier all_;
  std::map<std::pair<int, int>, Barrier> groups_;
};

}  // namespace casync::codec::cuda
