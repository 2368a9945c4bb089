// Operations on memory of a device, on the stand-in for CUDA's driver: in order with the program's streams both ways,
// and a named error for every fault.
#include "session/staging.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <numeric>

#include "casync/error.hpp"
#include "session/device_program.hpp"
#include "session/world.hpp"
#include "standin/standin.hpp"

namespace casync {
namespace {

using test::Floats;
using test::following;
using test::Program;
using test::run_on;

// How long copies take, in ms: who does not wait for them sees what was there before. A copy that did not wait for a
// kernel must be over before it.
constexpr int kCopy = test::kKernel / 4;

Signature signature(std::size_t count, OpKind kind = OpKind::allreduce) {
  Signature signature;
  signature.kind = kind;
  signature.op = ReduceOp::sum;
  signature.shape = {static_cast<std::int64_t>(count), 1};
  signature.compression = "none";
  signature.topology = "auto";
  signature.memory = MemoryKind::device;
  return signature;
}

std::uint32_t define(Session& session, const std::string& name, const Signature& of) {
  return session.define(name, of, "staging_test.cc");
}

/// Copies take their time while it lives.
struct SlowCopies {
  SlowCopies() { standin_delay_copies(kCopy, kCopy); }
  ~SlowCopies() { standin_delay_copies(0, 0); }
};

/// Three steps of one tensor in place, and of one that is not. Counts what is not as it must be.
int wrong_results(int ranks, std::size_t count) {
  std::atomic<int> wrong{0};
  spawn(ranks, [&](Session& session) {
    const Program program;
    const Floats mine(program, count);
    const Floats other(program, count);
    const std::uint32_t in_place = define(session, "in place", signature(count));
    const std::uint32_t apart = define(session, "apart", signature(count));
    for (int step = 0; step < 3; ++step) {
      const auto first = static_cast<float>(100 * step);
      const float factor = static_cast<float>(ranks);
      mine.write(first);
      run_on(session, in_place, program, mine.data(), mine.data());
      wrong += mine.read() != following(first, count, factor);
      mine.write(first + 7);
      run_on(session, apart, program, mine.data(), other.data());
      wrong += other.read() != following(first + 7, count, factor);
    }
  });
  return wrong;
}

TEST(Staging, IsInOrderWithTheProgramsStreamBothWays) {
  const SlowCopies slow;
  EXPECT_EQ(wrong_results(1, 100), 0);
  EXPECT_EQ(wrong_results(2, 1), 0);
  EXPECT_EQ(wrong_results(2, 20'000), 0);
  EXPECT_EQ(wrong_results(3, 100), 0);
}

/// Of a rank alone, whose results are its inputs, in other memory: nobody else holds up what comes too early.
int wrong_copies(int steps) {
  std::atomic<int> wrong{0};
  spawn(1, [&](Session& session) {
    const Program program;
    const Floats input(program, 100);
    const Floats output(program, 100);
    const std::uint32_t w = define(session, "w", signature(100));
    for (int step = 0; step < steps; ++step) {
      const auto first = static_cast<float>(100 * step);
      input.write(first);
      run_on(session, w, program, input.data(), output.data());
      wrong += output.read() != following(first, 100, 1);
    }
  });
  return wrong;
}

TEST(Staging, EveryWaitAndRecordIsNeeded) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what is lost here is what ThreadSanitizer finds";
#endif
  const SlowCopies slow;
  standin_drop(0);
  ASSERT_EQ(wrong_copies(3), 0);
  const int ordered = standin_ordered();
  ASSERT_EQ(ordered, 3 * 5);
  for (int n = 1; n <= ordered; ++n) {
    // Who is late shows what is lost, and a machine that is busy makes others late: one run of a few is enough.
    bool is_noticed = false;
    for (int attempt = 0; attempt < 4 && !is_noticed; ++attempt) {
      standin_drop(n);
      is_noticed = wrong_copies(3) > 0;
    }
    EXPECT_TRUE(is_noticed) << "nobody noticed that number " << n << " of " << ordered << " was lost";
  }
  standin_drop(0);
}

TEST(Staging, CarriesEveryOperation) {
  spawn(3, [](Session& session) {
    const Program program;
    const auto rank = static_cast<float>(session.rank());
    const Floats values(program, 7);
    values.write(10 * rank);

    run_on(session,
           define(session, "b",
                  [] {
                    Signature of = signature(7, OpKind::broadcast);
                    of.root = 1;
                    return of;
                  }()),
           program, values.data(), values.data());
    EXPECT_EQ(values.read(), following(10, 7, 1));

    const std::size_t rows = session.rank() == 0 ? 3 : 2;
    const std::size_t first = session.rank() == 0 ? 0 : static_cast<std::size_t>(1 + 2 * session.rank());
    const Floats share(program, rows);
    run_on(session, define(session, "s", signature(7, OpKind::reducescatter)), program, values.data(), share.data());
    EXPECT_EQ(share.read(), following(10 + static_cast<float>(first), rows, 3));

    Signature gather = signature(0, OpKind::allgather);
    gather.dims = "(*,)";
    const auto handle = session.submit(define(session, "g", gather), values.data(), nullptr,
                                       static_cast<std::int64_t>(session.rank() + 1), true, {}, program.here());
    while (!session.wait(handle, 1'000'000'000)) {
    }
    const Gathered gathered = session.take_result(handle);
    session.collect(handle);
    EXPECT_EQ(gathered.rows, (std::vector<std::int64_t>{1, 2, 3}));
    std::vector<float> all(6);
    std::memcpy(all.data(), gathered.bytes.data(), gathered.bytes.size());
    EXPECT_EQ(all, (std::vector<float>{10, 10, 11, 10, 11, 12}));

    const Floats none(program, 0);
    run_on(session, define(session, "e", signature(0)), program, none.data(), none.data());
  });
}

TEST(Staging, LeavesNothingBehind) {
  const std::size_t pinned = standin_pinned_bytes();
  const std::size_t device = standin_device_bytes();
  EXPECT_EQ(wrong_results(2, 5000), 0);
  EXPECT_EQ(standin_pinned_bytes(), pinned);
  EXPECT_EQ(standin_device_bytes(), device);
}

TEST(Staging, MemoryOfTheHostAndOfADeviceDoNotMix) {
  spawn(2, [](Session& session) {
    const Program program;
    const Floats values(program, 10);
    values.write(1);
    std::vector<float> host(10);
    Signature of = signature(10);
    const bool on_device = session.rank() == 0;
    if (!on_device) of.memory = MemoryKind::host;
    void* const data = on_device ? values.data() : host.data();
    const auto handle =
        session.submit(define(session, "w", of), data, data, 0, true, {}, on_device ? program.here() : DeviceStream{});
    while (!session.wait(handle, 1'000'000'000)) {
    }
    try {
      session.collect(handle);
      FAIL();
    } catch (const Mismatch& mismatch) {
      const std::string text = mismatch.what();
      EXPECT_NE(text.find("Mismatched CPU/GPU device selection"), std::string::npos) << text;
      EXPECT_NE(text.find("on a device"), std::string::npos) << text;
    }
  });
}

template <typename Failure, typename Call>
std::string thrown_by(const Call& call) {
  try {
    call();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.facts.tensor, "w");
    return failure.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(Staging, RefusesWhatItCannotCarry) {
  spawn(1, [](Session& session) {
    const Program program;
    const Floats values(program, 10);
    const std::uint32_t w = define(session, "w", signature(10));
    const auto submit = [&](const DeviceStream& where) {
      session.submit(w, values.data(), values.data(), 0, true, {}, where);
    };
    standin_capture(program.here().stream, 1);
    EXPECT_NE(thrown_by<InvalidArgument>([&] { submit(program.here()); }).find("captured into a CUDA graph"),
              std::string::npos);
    standin_capture(program.here().stream, 0);
    const Program second(1);
    EXPECT_NE(thrown_by<InvalidArgument>([&] { submit(second.here()); }).find("torch.cuda.set_device"),
              std::string::npos);
    EXPECT_NE(thrown_by<InvalidArgument>([&] { submit({}); }).find("on a device"), std::string::npos);
    values.write(3);
    run_on(session, w, program, values.data(), values.data());
    EXPECT_EQ(values.read(), following(3, 10, 1));
  });
}

TEST(Staging, ACallThatFailsInASubmitIsRaisedThereAndNothingWasSubmitted) {
  for (const char* const call :
       {"cuStreamIsCapturing", "cuMemHostAlloc", "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent",
        "cuMemcpyDtoHAsync_v2", "cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority"}) {
    const std::size_t pinned = standin_pinned_bytes();
    spawn(1, [call](Session& session) {
      const Program program;
      const Floats values(program, 10);
      values.write(3);
      program.synchronize();
      const std::uint32_t w = define(session, "w", signature(10));
      standin_fail(call, 1, cuda::kOutOfMemory);
      const std::string text = thrown_by<DeviceFailure>(
          [&] { session.submit(w, values.data(), values.data(), 0, true, {}, program.here()); });
      EXPECT_NE(text.find(detail::concat(call, " failed with CUDA_ERROR_OUT_OF_MEMORY")), std::string::npos) << text;
      run_on(session, w, program, values.data(), values.data());
      EXPECT_EQ(values.read(), following(3, 10, 1));
    });
    EXPECT_EQ(standin_pinned_bytes(), pinned) << call;
  }
}

/// How an operation ended that was submitted with a completion.
void run_called_back(Session& session, std::uint32_t registration, const Program& program, const Floats& values) {
  struct Heard {
    std::latch called{1};
    std::exception_ptr failure;
  } heard;
  session.submit(
      registration, values.data(), values.data(),
      [to = &heard](Outcome&& outcome) {
        to->failure = outcome.failure;
        to->called.count_down();
      },
      0, true, {}, program.here());
  heard.called.wait();
  if (heard.failure != nullptr) std::rethrow_exception(heard.failure);
}

TEST(Staging, ACompletionIsCalledWhenTheResultIsThere) {
  const SlowCopies slow;
  spawn(2, [](Session& session) {
    const Program program;
    const Floats values(program, 1000);
    values.write(1);
    run_called_back(session, define(session, "w", signature(1000)), program, values);
    EXPECT_EQ(values.read(), following(1, 1000, 2));
  });
}

/// The device of one rank fails at `call`; a peer that has its result already hears of it in its next operation.
void expect_lost(const char* call, bool with_completion) {
  const auto begun = std::chrono::steady_clock::now();
  spawn(2, [=](Session& session) {
    const Program program;
    const Floats values(program, 1000);
    values.write(1);
    program.synchronize();
    const std::uint32_t w = define(session, "w", signature(1000));
    if (session.rank() == 0) standin_fail(call, 1, 214);
    const std::string text = thrown_by<Aborted>([&] {
      for (int i = 0; i < 1000; ++i) {
        if (with_completion) {
          run_called_back(session, w, program, values);
        } else {
          run_on(session, w, program, values.data(), values.data());
        }
      }
    });
    EXPECT_NE(text.find(detail::concat("device 0 failed: CUDA's ", call)), std::string::npos) << text;
    session.shutdown();  // until then copies may touch the memory
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10)) << call;
}

TEST(Staging, ADeviceThatFailsInAStepIsAnErrorOnEveryRank) {
  for (const bool with_completion : {false, true}) {
    expect_lost("cuEventQuery", with_completion);
    expect_lost("cuMemcpyHtoDAsync_v2", with_completion);
  }
}

TEST(Staging, AnErrorLeavesNoneOfSeveralOperationsBehind) {
  for (int n = 1; n <= 6; ++n) {
    spawn(1, [n](Session& session) {
      const Program program;
      std::vector<std::unique_ptr<Floats>> all;
      std::vector<Session::Handle> handles;
      for (int i = 0; i < 4; ++i) {
        all.push_back(std::make_unique<Floats>(program, 100));
        const std::uint32_t w = define(session, detail::concat("w", i), signature(100));
        handles.push_back(session.submit(w, all.back()->data(), all.back()->data(), 0, true, {}, program.here()));
      }
      program.synchronize();
      standin_fail("cuEventQuery", n, 214);
      for (const auto handle : handles) {
        EXPECT_TRUE(session.wait(handle, 5'000'000'000)) << n;
        try {
          session.collect(handle);
        } catch (const Aborted&) {
        }
      }
      session.shutdown();
    });
    standin_fail("cuEventQuery", 0, 0);
  }
}

TEST(Staging, ADeviceThatIsLostAfterTheOperationFailsItWhereItIsCollected) {
  spawn(1, [](Session& session) {
    const Program program;
    const Floats values(program, 100);
    const std::uint32_t w = define(session, "w", signature(100));
    const auto handle = session.submit(w, values.data(), values.data(), 0, true, {}, program.here());
    ASSERT_TRUE(session.wait(handle, 5'000'000'000));
    standin_fail("cuStreamWaitEvent", 1, 214);
    session.order_after(handle, program.here().stream);
    EXPECT_NE(thrown_by<Aborted>([&] { session.collect(handle); }).find("device 0 failed"), std::string::npos);
    EXPECT_NE(thrown_by<DeviceFailure>([&] {
                session.submit(w, values.data(), values.data(), 0, true, {}, program.here());
              }).find("The session is over"),
              std::string::npos);
    session.shutdown();
  });
}

TEST(Staging, AJoinComesAfterWhatWasSubmittedBefore) {
  const SlowCopies slow;
  spawn(2, [](Session& session) {
    const Program program;
    const Floats values(program, 100);
    const std::uint32_t w = define(session, "w", signature(100));
    values.write(1);
    const auto handle = session.submit(w, values.data(), values.data(), 0, true, {}, program.here());
    Signature of;
    of.kind = OpKind::join;
    const auto join = session.submit(define(session, "join", of), nullptr, nullptr);
    for (const auto each : {handle, join}) {
      while (!session.wait(each, 1'000'000'000)) {
      }
    }
    session.order_after(handle, program.here().stream);
    session.collect(handle);
    session.collect(join);
    EXPECT_EQ(values.read(), following(1, 100, 2));
  });
}

TEST(Staging, WhatNobodyCollectedIsFreedWithTheSession) {
  const std::size_t pinned = standin_pinned_bytes();
  spawn(1, [](Session& session) {
    const Program program;
    const Floats values(program, 100);
    session.submit(define(session, "w", signature(100)), values.data(), values.data(), 0, true, {}, program.here());
    session.shutdown();
  });
  EXPECT_EQ(standin_pinned_bytes(), pinned);
}

TEST(Staging, ALostDeviceEndsTheSessionWithinTenSeconds) {
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(spawn(1,
                     [](Session& session) {
                       const Program program;
                       const Floats values(program, 1000);
                       const std::uint32_t w = define(session, "w", signature(1000));
                       run_on(session, w, program, values.data(), values.data());
                       values.write(1);
                       const auto handle = session.submit(w, values.data(), values.data(), 0, true, {}, program.here());
                       standin_lose_device(1);
                       while (!session.wait(handle, 1'000'000'000)) {
                       }
                       session.collect(handle);
                     }),
               Aborted);
  standin_lose_device(0);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
}

TEST(Staging, AShutdownLeavesNoCompletionUncalled) {
  const SlowCopies slow;
  static std::atomic<int> called{0};
  spawn(2, [](Session& session) {
    const Program program;
    std::vector<std::unique_ptr<Floats>> all;
    for (int i = 0; i < 5; ++i) {
      all.push_back(std::make_unique<Floats>(program, 100));
      all.back()->write(1);
      const std::uint32_t w = define(session, detail::concat("w", i), signature(100));
      session.submit(
          w, all.back()->data(), all.back()->data(), [](Outcome&&) { ++called; }, 0, true, {}, program.here());
    }
    session.shutdown();
  });
  EXPECT_EQ(called, 10);
}

}  // namespace
}  // namespace casync
