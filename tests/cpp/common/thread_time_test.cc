// What a thread has had of the processors: worked for the program, worked for the runtime, waited, or slept.
#include "common/thread_time.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace casync {
namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;

void work_for(Nanoseconds time) {
  const Nanoseconds begun = thread_time().worked;
  while (thread_time().worked - begun < time) continue;
}

TEST(ThreadTime, SleepIsNoWork) {
  const ThreadMoment before = program_time();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const ThreadMoment after = program_time();
  EXPECT_EQ(after.thread, before.thread);
  EXPECT_LT(after.worked - before.worked, 20 * kMillisecond);
}

TEST(ThreadTime, WhatAThreadDoesForTheRuntimeIsNotTheProgramsWork) {
  const ThreadMoment before = program_time();
  {
    const CoreScope scope;
    work_for(30 * kMillisecond);
    EXPECT_GE(scope.worked(), 30 * kMillisecond);
  }
  const ThreadMoment after = program_time();
  EXPECT_LT(after.worked - before.worked, 20 * kMillisecond);
  EXPECT_GE(after.hindered - before.hindered, 30 * kMillisecond);
  work_for(30 * kMillisecond);
  EXPECT_GE(program_time().worked - after.worked, 30 * kMillisecond);
}

TEST(ThreadTime, EachThreadHasItsOwn) {
  const ThreadMoment here = program_time();
  std::thread([&] { EXPECT_NE(program_time().thread, here.thread); }).join();
}

/// Two threads on one processor: each waits for about as long as the other works.
TEST(ThreadTime, WaitingForAProcessorIsSeen) {
  if (access("/proc/thread-self/schedstat", R_OK) != 0) GTEST_SKIP() << "this system does not tell";
  std::atomic<bool> stop{false};
  Nanoseconds waited = 0;
  const auto on_one_processor = [](const auto& work) {
    return std::thread([&work] {
      cpu_set_t allowed;
      pthread_getaffinity_np(pthread_self(), sizeof(allowed), &allowed);
      cpu_set_t one;
      CPU_ZERO(&one);
      for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
        if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
      }
      pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
      work();
    });
  };
  const auto disturb = [&] {
    while (!stop) continue;
  };
  const auto measure = [&] {
    const Nanoseconds before = thread_time().waited;
    work_for(60 * kMillisecond);
    waited = thread_time().waited - before;
    stop = true;
  };
  std::thread other = on_one_processor(disturb);
  on_one_processor(measure).join();
  other.join();
  EXPECT_GT(waited, 10 * kMillisecond);
}

}  // namespace
}  // namespace casync
