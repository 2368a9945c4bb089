// Gradients that are computed on a device, on the stand-in: what a session of the CPU gives, bit by bit.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "session/device_program.hpp"
#include "session/world.hpp"
#include "standin/standin.hpp"

namespace casync {
namespace {

using test::Floats;
using test::Program;

constexpr std::size_t kCount = 50'000;
constexpr int kWatched = 3;  // steps: the first goes through the host, as its plan is not known

/// None for a codec that needs none of its own.
std::string kernels_of(const std::string& codec) {
  const bool needs_none = codec != "common" && make_codec(codec)->device_code() == nullptr;
  return needs_none ? "" : KERNELS + codec.substr(0, codec.find('(')) + ".so";
}

Signature signature(const std::string& codec, const std::string& topology, MemoryKind memory,
                    std::size_t count = kCount) {
  Signature signature;
  signature.op = ReduceOp::average;
  signature.shape = {static_cast<std::int64_t>(count), 1};
  signature.compression = codec;
  signature.topology = topology;
  signature.memory = memory;
  return signature;
}

/// Of a rank in a step.
std::vector<float> gradient(int rank, int step, std::size_t count = kCount) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto wave = static_cast<float>((i * 2654435761U + static_cast<std::size_t>(rank * 977 + step * 131)) % 2001);
    values[i] = (wave - 1000.0F) * 1e-3F;
  }
  return values;
}

/// All that a job has shown: results, and residuals at the end, of each rank.
struct Shown {
  std::map<int, std::vector<std::vector<float>>> results;
  std::map<int, std::vector<float>> residuals;
  friend bool operator==(const Shown&, const Shown&) = default;
};

struct Job {
  int ranks = 3;
  int steps = 4;
  std::string codec = "onebit";
  std::string topology = "ps";
  std::uint32_t ranks_of_host = 1;
  std::size_t count = kCount;
  std::string lane = "host";
};

Shown run_job(const Job& job, bool on_device) {
  const auto& [ranks, steps, codec, topology, ranks_of_host, count, lane] = job;
  Shown shown;
  std::mutex mutex;
  spawn(
      ranks,
      [&](Session& session) {
        const Program program;
        const Floats tensor(program, count);
        std::vector<float> host(count);
        if (on_device) session.add_device_code(0, kernels_of("common"), codec, kernels_of(codec));
        const MemoryKind memory = on_device ? MemoryKind::device : MemoryKind::host;
        const std::uint32_t w = session.define("w", signature(codec, topology, memory, count), "stream_test.cc");
        for (int step = 0; step < steps; ++step) {
          const std::vector<float> mine = gradient(session.rank(), step, count);
          if (on_device) {
            tensor.assign(mine);
            run_on(session, w, program, tensor.data(), tensor.data());
            host = tensor.read();
          } else {
            host = mine;
            run(session, w, host.data(), host.data());
          }
          const std::lock_guard lock(mutex);
          shown.results[session.rank()].push_back(host);
        }
        const FloatArray residual = session.residual("w");
        const std::lock_guard lock(mutex);
        shown.residuals[session.rank()].assign(residual.begin(), residual.end());
      },
      [&](int, SessionOptions& options) {
        for (std::uint32_t& host : options.host_of) host /= ranks_of_host;
        options.device_lane = lane;
      });
  return shown;
}

TEST(Stream, GivesTheBitsOfTheCpu) {
  for (const std::string codec : {"onebit", "terngrad(bits=4)", "threelc", "graddrop(drop=0.9)", "fp16", "bf16"}) {
    for (const std::string topology : {"ps", "direct", "ring"}) {
      if (codec[0] == 'g' && topology != "direct") continue;  // its payloads are gathered
      SCOPED_TRACE(codec + " by " + topology);
      const int launches = standin_launches();
      const Shown device = run_job({.codec = codec, .topology = topology}, true);
      EXPECT_GT(standin_launches(), launches) << "no kernel was launched";
      EXPECT_TRUE(device == run_job({.codec = codec, .topology = topology}, false));
    }
  }
}

TEST(Stream, ARankThatIsAloneComputesThereToo) {
  const int launches = standin_launches();
  const Shown device = run_job({.ranks = 1, .steps = 3, .codec = "fp16"}, true);  // its plan is `none`
  EXPECT_GT(standin_launches(), launches);
  EXPECT_TRUE(device == run_job({.ranks = 1, .steps = 3, .codec = "fp16"}, false));
}

TEST(Stream, ARingAndHostsOfSeveralRanksGoThroughTheHostWhereTheyMust) {
  for (const Job& job : {Job{.ranks = 4, .steps = 3, .topology = "ring"},
                         Job{.ranks = 4, .steps = 3, .topology = "two_level", .ranks_of_host = 2}}) {
    EXPECT_TRUE(run_job(job, true) == run_job(job, false)) << job.topology;
  }
}

TEST(Stream, DevicesSendToEachOther) {
  for (const std::string topology : {"ps", "direct", "ring", "two_level"}) {
    for (const std::string codec : {"onebit", "none", "fp16", "graddrop(drop=0.9)"}) {
      if (codec[0] == 'g' && topology != "direct") continue;  // its payloads are gathered
      SCOPED_TRACE(codec + " by " + topology);
      const int copies = standin_copies_between();
      const Job job{4, 3, codec, topology, 2, 4 * kCount, "ipc"};
      const Shown device = run_job(job, true);
      EXPECT_GT(standin_copies_between(), copies) << "nothing went by the lane";
      EXPECT_TRUE(device == run_job(job, false));
    }
  }
}

TEST(Stream, AGradientIsComputedWhenTheProgramsStreamHasComeToIt) {
  spawn(2, [](Session& session) {
    const Program program;
    const Floats tensor(program, kCount);
    session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
    const std::uint32_t w = session.define("w", signature("onebit", "ps", MemoryKind::device), "stream_test.cc");
    for (int step = 0; step < 4; ++step) {
      tensor.write(static_cast<float>(step + 1) * 1e6F);  // takes its time
      run_on(session, w, program, tensor.data(), tensor.data());
      EXPECT_GT(tensor.read()[0], static_cast<float>(step) * 1e6F) << "step " << step;
    }
  });
}

/// Of a few steps of two ranks: how many results are not those of the CPU. The first rank's kernels take their time on
/// device 0, which the stand-in watches; the second one, on device 1, is through at once, so it holds nothing up.
int wrong_results(const Shown& right) {
  std::atomic<int> wrong{0};
  try {
    spawn(2, [&](Session& session) {
      const Program program(session.rank());
      const Floats tensor(program, kCount);
      session.add_device_code(session.rank(), kernels_of("common"), "onebit", kernels_of("onebit"));
      const std::uint32_t w = session.define("w", signature("onebit", "ps", MemoryKind::device), "stream_test.cc");
      for (int step = 0; step < kWatched; ++step) {
        const std::vector<float> mine = gradient(session.rank(), step);
        session.rank() == 0 ? tensor.assign_slowly(mine) : tensor.assign(mine);
        run_on(session, w, program, tensor.data(), tensor.data());
        wrong += tensor.read() != right.results.at(session.rank())[static_cast<std::size_t>(step)];
      }
    });
  } catch (const std::exception&) {  // bytes that no codec wrote
    ++wrong;
  }
  return wrong;
}

TEST(Stream, EveryWaitAndRecordIsNeeded) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what is lost here is what ThreadSanitizer finds";
#endif
  const Shown right = run_job({.ranks = 2, .steps = kWatched}, false);
  standin_delay_kernels(1);  // of the codec
  standin_delay_copies(6, 6);
  standin_drop(0);
  ASSERT_EQ(wrong_results(right), 0);
  const int ordered = standin_ordered();
  // By the host: two events, recorded three times and waited for twice. Then, in each step, the program's, what waits
  // for it to ring, and one for each batch.
  const int step = (ordered - 5) / (kWatched - 1);
  ASSERT_EQ(ordered, 5 + step * (kWatched - 1));
  for (int n = 1; n <= ordered; ++n) {
    if (n > 5 && (n - 5) % step == 2) continue;  // without it the bell rings early, and nothing follows from that
    standin_drop(n);
    EXPECT_GT(wrong_results(right), 0) << "nobody noticed that number " << n << " of " << ordered << " was lost";
  }
  standin_delay_copies(0, 0);
  standin_delay_kernels(0);
  standin_drop(0);
}

/// Of two ranks, the first of which does `fault` before its third step: how many got an error of the device.
int errors_of_device(const std::function<void()>& fault) {
  std::atomic<int> of_device{0};
  const auto body = [&](Session& session) {
    const Program program;
    const Floats tensor(program, kCount);
    session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
    const std::uint32_t w = session.define("w", signature("onebit", "ps", MemoryKind::device), "stream_test.cc");
    for (int step = 0; step < 4; ++step) {
      tensor.assign(gradient(session.rank(), step));
      if (step == 2 && session.rank() == 0) fault();
      try {
        run_on(session, w, program, tensor.data(), tensor.data());
      } catch (const Aborted& error) {
        of_device += error.facts.kind == ErrorKind::device;
        throw;
      }
    }
  };
  EXPECT_ANY_THROW(spawn(2, body));
  return of_device;
}

TEST(Stream, AFailedLaunchEndsTheSessionWithItsError) {
  EXPECT_GE(errors_of_device([] { standin_fail("cuLaunchKernel", 1, 214); }), 1);
  standin_fail("cuLaunchKernel", 0, 0);
}

TEST(Stream, ADeviceThatIsLostEndsTheSessionWithItsError) {
  EXPECT_GE(errors_of_device([] { standin_lose_device(1); }), 1);
  standin_lose_device(0);
}

TEST(Stream, WhatHasNoDeviceCodeIsRefused) {
  spawn(1, [](Session& session) {
    const Program program;
    EXPECT_THROW(session.add_device_code(0, kernels_of("common"), "test_topk(k=4)", ""), InvalidArgument);
    EXPECT_THROW(session.add_device_code(0, kernels_of("common"), "onebit", "/nowhere.so"), DeviceFailure);
  });
}

}  // namespace
}  // namespace casync
