// Events and pinned memory that are used again, and the stand-in that the tests of all this trust.
#include "cuda/device.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "casync/error.hpp"
#include "cuda/pinned.hpp"
#include "standin/standin.hpp"

extern "C" casync::cuda::Result cuMemAlloc_v2(casync::cuda::DevicePointer* address, std::size_t bytes);
extern "C" casync::cuda::Result cuMemFree_v2(casync::cuda::DevicePointer address);

namespace casync::cuda {
namespace {

const Driver& standin() {
  setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1);
  return driver();
}

class OnDevice : public testing::Test {
 protected:
  Device device_{standin(), 0};
  Device::Current current_{device_};
  Events events_{device_};
};

TEST_F(OnDevice, PinnedMemoryIsGivenOutAgainWhenItsLastCopyIsOver) {
  PinnedPool pool(device_, events_);
  const Stream stream = device_.make_stream();
  std::byte* const first = pool.take(5000);
  const EventHandle copied = events_.take();
  standin_launch(stream, [](void*) {}, nullptr, 50);
  CASYNC_CUDA(device_.driver(), cuEventRecord, copied, stream);
  pool.give(first, 5000, copied);
  std::byte* const second = pool.take(5000);
  EXPECT_NE(first, second);
  CASYNC_CUDA(device_.driver(), cuStreamSynchronize, stream);
  EXPECT_EQ(pool.take(8000), first);  // of whole pages, so the same block
  EXPECT_EQ(pool.bytes(), 2 * 8192U);
  pool.give(first, 8000, nullptr);
  pool.give(second, 5000, nullptr);
  CASYNC_CUDA(device_.driver(), cuStreamDestroy_v2, stream);
}

TEST_F(OnDevice, NoPinnedMemoryIsAnErrorThatSaysHowMuchAndWhatToDo) {
  PinnedPool pool(device_, events_);
  standin_fail("cuMemHostAlloc", 1, kOutOfMemory);
  try {
    pool.take(5000);
    FAIL();
  } catch (const DeviceFailure& failure) {
    EXPECT_NE(std::string(failure.what()).find("no 8192 bytes of pinned memory"), std::string::npos) << failure.what();
    EXPECT_NE(std::string(failure.what()).find("ulimit -l"), std::string::npos) << failure.what();
  }
  pool.give(pool.take(5000), 5000, nullptr);  // the next time it is there
}

TEST_F(OnDevice, PinnedMemoryOfManySizesStaysWithinTwiceWhatWasOut) {
  PinnedPool pool(device_, events_);
  for (std::size_t bytes = 1; bytes < (1U << 20); bytes += 30'011) {
    pool.give(pool.take(bytes), bytes, nullptr);
    EXPECT_LE(pool.bytes(), 2 * (bytes + bytes / 8 + 4096));
  }
  EXPECT_LE(standin_pinned_bytes(), pool.bytes());
}

TEST_F(OnDevice, WhatIsIdleIsUnlockedBeforeThereIsTooLittle) {
  PinnedPool pool(device_, events_);
  pool.give(pool.take(100'000), 100'000, nullptr);
  standin_fail("cuMemHostAlloc", 1, kOutOfMemory);
  std::byte* const memory = pool.take(5000);
  EXPECT_NE(memory, nullptr);
  EXPECT_EQ(pool.bytes(), 8192U);
  pool.give(memory, 5000, nullptr);
}

TEST_F(OnDevice, NothingIsLeftBehind) {
  const std::size_t before = standin_pinned_bytes();
  {
    PinnedPool pool(device_, events_);
    pool.give(pool.take(100), 100, nullptr);
    EXPECT_EQ(standin_pinned_bytes(), before + 4096);
    EXPECT_EQ(pool.take(0), nullptr);
  }
  EXPECT_EQ(standin_pinned_bytes(), before);
}

TEST_F(OnDevice, AnEventThatWasNeverRecordedIsOver) {
  const EventHandle event = events_.take();
  EXPECT_TRUE(events_.is_over(event));
  events_.give(event);
}

TEST(StandIn, EndsAProcessWhoseHostUsesDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a child that is only forked may not use the driver
  const auto use = [](bool freed) {
    const Device device(standin(), 1);
    const Device::Current current(device);
    DevicePointer address = 0;
    ASSERT_EQ(cuMemAlloc_v2(&address, 1000), 0);
    if (freed) cuMemFree_v2(address);
    *reinterpret_cast<volatile char*>(address + 100) = 1;
  };
  EXPECT_DEATH(use(false), "the host used device memory: byte 100 of 1000 on device 1");
  EXPECT_DEATH(use(true), "byte 100 of 1000 that were freed on device 1");
}

TEST_F(OnDevice, TheStandInEndsAProcessThatCallsTheDriverFromAHostFunction) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto call = [this] {
    const Stream stream = device_.make_stream();
    CASYNC_CUDA(device_.driver(), cuLaunchHostFunc, stream, [](void*) { driver().cuEventQuery(nullptr); }, nullptr);
    driver().cuStreamSynchronize(stream);
  };
  EXPECT_DEATH(call(), "cuEventQuery was called by a function that cuLaunchHostFunc had queued");
}

}  // namespace
}  // namespace casync::cuda
