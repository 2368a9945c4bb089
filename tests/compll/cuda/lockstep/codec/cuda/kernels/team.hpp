#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "codec/cuda/kernels/many.hpp"
#include "codec/cuda/kernels/scratch.hpp"
#include "lockstep_kernel.hpp"
#include "turns.hpp"

/// Teams of codec/cuda/kernels/team.hpp on the CPU: 64 threads that take turns (turns.hpp).
namespace casync::codec::cuda {

class LockstepTeam {
 public:
  LockstepTeam(Turns& turns, int rank, int index, int count)
      : turns_(turns), rank_(rank), index_(index), count_(count) {}

  int rank() const { return rank_; }
  int size() const { return turns_.threads(); }
  int index() const { return index_; }
  int count() const { return count_; }
  void barrier() const { turns_.wait(rank_); }
  void count_one(std::int32_t* counter) const { ++*counter; }

  template <typename T>
  T below(T value, int distance) const {
    const int other = rank_ % 16 + distance < 16 ? rank_ + distance : rank_;
    return given_by_others(value, [&] { turns_.wait_in_group(rank_, 16); }, [&](const auto& of) { return of(other); });
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
  static constexpr int kBlock = kThreads;
  static constexpr bool kWide = false;
  using LockstepTeam::LockstepTeam;
};
template <int kThreads>
class WideTeam : public LockstepTeam {
 public:
  static constexpr int kBlock = kThreads;
  static constexpr bool kWide = true;
  using LockstepTeam::LockstepTeam;
};

template <typename Team, typename Work>
void run_teams(int count, const Work& work) {
  thread_local Turns turns(64);
  for (int index = 0; index < count; ++index) turns.run([&](int rank) { work(Team(turns, rank, index, count)); });
}

}  // namespace casync::codec::cuda

namespace casync::codec::cuda {

template <typename Arguments>
void visit_all(void* given, void* context, LockstepKernel::Visitor f) {
  visit_pointers(*static_cast<Arguments*>(given), [&](auto*& pointer) {
    void* plain = const_cast<void*>(static_cast<const void*>(pointer));
    f(context, &plain);
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(plain);
  });
}

}  // namespace casync::codec::cuda

/// What is found under a kernel's name. `program` runs when the kernel does, so what it has for each gradient in the
/// memory of the device is read, and its pointers are visited, then.
#define CASYNC_KERNEL(kernel, Team, Arguments, program)                                                              \
  extern "C" {                                                                                                       \
  extern const LockstepKernel kernel;                                                                                \
  }                                                                                                                  \
  const LockstepKernel kernel{Team::kBlock, Team::kWide, sizeof(Many<Arguments>),                                    \
                              [](const void* given, int teams, void* context, LockstepKernel::Visitor visitor) {     \
                                Many<Arguments> many = *static_cast<const Many<Arguments>*>(given);                  \
                                std::vector<Arguments> each;                                                         \
                                if (many.each != nullptr) each.assign(many.each, many.each + many.count);            \
                                for (Arguments& one : each) visit_all<Arguments>(&one, context, visitor);            \
                                if (many.each != nullptr) many.each = each.data();                                   \
                                run_teams<Team>(teams, [&](const Team& team) {                                       \
                                  work_off(team, many, [](const Team& of, const Arguments& its, std::int64_t item) { \
                                    program(of, its, item);                                                          \
                                  });                                                                                \
                                });                                                                                  \
                              },                                                                                     \
                              visit_all<Many<Arguments>>};
