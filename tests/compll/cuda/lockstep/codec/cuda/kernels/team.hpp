#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

/// Teams of codec/cuda/kernels/team.hpp on the CPU: 64 threads that take turns, each from one barrier to the next. The
/// first one that can go on always does (`backwards`: the last), so that a group is as far ahead of the others as
/// barriers let it, and one that is missing shows. A barrier that not all of them reach ends the program.
namespace casync::codec::cuda {

using Status = int;
using Stream = int;
constexpr int kMostBlocks = 1024;

inline bool backwards = false;

class Turns {
 public:
  static constexpr int kThreads = 64;

  void run(const std::function<void(int)>& body) {
    body_ = &body;
    for (int rank = 0; rank < kThreads; ++rank) begin(rank);
    for (int left = kThreads; left > 0;) {
      const int rank = next();
      if (rank < 0) {
        std::fputs("a barrier that not all threads of a team reach\n", stderr);
        std::abort();
      }
      swapcontext(&main_, &thread_[rank].context);
      if (thread_[rank].done) --left;
    }
  }

  void wait(int rank) { wait_at(all_, kThreads, rank); }
  void wait_in_group(int rank) { wait_at(groups_[rank / 16], 16, rank); }
  std::uint64_t& slot(int rank) { return slots_[rank]; }

 private:
  struct Barrier {
    int arrived = 0;
    int generation = 0;
  };
  struct Thread {
    ucontext_t context;
    bool done = false;
    const Barrier* at = nullptr;
    int generation = 0;

    bool can_go_on() const { return !done && (at == nullptr || at->generation != generation); }
  };
  static constexpr std::size_t kStack = 256 * 1024;

  int next() const {
    for (int turn = 0; turn < kThreads; ++turn) {
      const int rank = backwards ? kThreads - 1 - turn : turn;
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
    swapcontext(&thread_[rank].context, &main_);
  }

  void begin(int rank) {
    Thread& thread = thread_[rank];
    thread.done = false;
    thread.at = nullptr;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = stacks_.get() + kStack * static_cast<std::size_t>(rank);
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = &main_;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&thread.context, reinterpret_cast<void (*)()>(&entry), 3, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self), rank);
  }
  static void entry(unsigned high, unsigned low, int rank) {
    auto* const self = reinterpret_cast<Turns*>(static_cast<std::uintptr_t>(high) << 32 | low);
    (*self->body_)(rank);
    self->thread_[rank].done = true;
  }

  const std::function<void(int)>* body_ = nullptr;
  std::unique_ptr<char[]> stacks_ = std::make_unique<char[]>(kStack * kThreads);
  ucontext_t main_;
  Thread thread_[kThreads];
  Barrier all_;
  Barrier groups_[kThreads / 16];
  std::uint64_t slots_[kThreads];
};

class LockstepTeam {
 public:
  LockstepTeam(Turns& turns, int rank, int index, int count)
      : turns_(turns), rank_(rank), index_(index), count_(count) {}

  int rank() const { return rank_; }
  int size() const { return Turns::kThreads; }
  int index() const { return index_; }
  int count() const { return count_; }
  void barrier() const { turns_.wait(rank_); }
  void count_one(std::int32_t* counter) const { ++*counter; }

  template <typename T>
  T below(T value, int distance) const {
    const int other = rank_ % 16 + distance < 16 ? rank_ + distance : rank_;
    return given_by_others(value, [&] { turns_.wait_in_group(rank_); }, [&](const auto& of) { return of(other); });
  }

  template <typename Operation, typename T>
  T scan(T value, T neutral, T& total) const {
    return given_by_others(
        value, [&] { barrier(); },
        [&](const auto& of) {
          T before = neutral;
          total = neutral;
          for (int rank = 0; rank < size(); ++rank) {
            if (rank == rank_) before = total;
            total = Operation{}(total, of(rank));
          }
          return before;
        });
  }

  bool any(bool value) const {
    return given_by_others(
        value, [&] { barrier(); },
        [&](const auto& of) {
          bool found = false;
          for (int rank = 0; rank < size(); ++rank) found |= of(rank);
          return found;
        });
  }

 private:
  template <typename T, typename Wait, typename Read>
  T given_by_others(T value, const Wait& wait, const Read& read) const {
    std::memcpy(&turns_.slot(rank_), &value, sizeof value);
    wait();
    const T result = read([&](int rank) {
      T other;
      std::memcpy(&other, &turns_.slot(rank), sizeof other);
      return other;
    });
    wait();
    return result;
  }

  Turns& turns_;
  int rank_;
  int index_;
  int count_;
};

template <int kThreads>
class BlockTeam : public LockstepTeam {
 public:
  static constexpr bool kWholeGrid = false;
  using LockstepTeam::LockstepTeam;
};
class GridTeam : public LockstepTeam {
 public:
  static constexpr bool kWholeGrid = true;
  using LockstepTeam::LockstepTeam;
};

template <typename Team, typename Work>
Status launch(const Work& work, std::int64_t teams, std::int64_t* /*totals*/, Stream /*stream*/) {
  static Turns turns;
  const int count = Team::kWholeGrid ? 1 : static_cast<int>(teams);
  for (int index = 0; index < count; ++index) turns.run([&](int rank) { work(Team(turns, rank, index, count)); });
  return 0;
}

}  // namespace casync::codec::cuda
