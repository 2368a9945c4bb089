// Gradients that are computed on a device, on the stand-in: what a session of the CPU gives, bit by bit.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "planner/tune/measured_planning.hpp"
#include "session/device_program.hpp"
#include "session/world.hpp"
#include "standin/nccl/standin_nccl.hpp"
#include "standin/standin.hpp"

namespace casync {
namespace {

using test::Floats;
using test::Program;

constexpr std::size_t kCount = 50'000;  // elements of a matrix
constexpr int kWatched = 3;             // steps: the first goes through the host, as its plan is not known

/// None for a codec that needs none of its own.
std::string kernels_of(const std::string& codec) {
  const bool needs_none = codec != "common" && make_codec(codec)->device_code() == nullptr;
  return needs_none ? "" : KERNELS + codec.substr(0, codec.find('(')) + ".so";
}

Signature signature(const std::string& codec, const std::string& topology, MemoryKind memory,
                    std::size_t count = kCount, std::size_t columns = 100) {
  Signature signature;
  signature.op = ReduceOp::average;
  signature.shape = {static_cast<std::int64_t>(count / columns), static_cast<std::int64_t>(columns)};
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

/// What a checkpoint has of a rank.
struct Saved {
  CodecState state;
  FloatArray residual;
  friend bool operator==(const Saved& a, const Saved& b) {
    return a.residual == b.residual && a.state.codec == b.state.codec && a.state.agreed == b.state.agreed &&
           a.state.steps == b.state.steps && a.state.values == b.state.values;
  }
};

/// All that a job has shown, of each rank: results, and what it kept at the end.
struct Shown {
  std::map<int, std::vector<std::vector<float>>> results;
  std::map<int, Saved> kept;
  friend bool operator==(const Shown&, const Shown&) = default;
};

struct Job {
  std::string codec;
  std::string topology = "ps";
  bool on_device = false;
  int ranks = 3;
  int first = 0;  ///< step
  int steps = 4;
  int loads = -1;  ///< before which step a residual is put in
  int bad = -1;    ///< the step in which rank 0's gradient is not finite
  std::uint32_t ranks_of_host = 1;
  std::size_t count = kCount;
  std::size_t columns = 100;
  std::string lane = "host";
  std::string code{};           ///< the device's is this codec's; empty: its own
  std::map<int, Saved> from{};  ///< what each rank begins with
};

Shown run_job(const Job& job) {
  Shown shown;
  std::mutex mutex;
  spawn(
      job.ranks,
      [&](Session& session) {
        const Program program;
        const Floats tensor(program, job.count);
        std::vector<float> host(job.count);
        const std::string& code = job.code.empty() ? job.codec : job.code;
        if (job.on_device) session.add_device_code(0, kernels_of("common"), code, kernels_of(code));
        const MemoryKind memory = job.on_device ? MemoryKind::device : MemoryKind::host;
        const std::uint32_t w =
            session.define("w", signature(job.codec, job.topology, memory, job.count, job.columns), "stream_test.cc");
        if (const auto from = job.from.find(session.rank()); from != job.from.end()) {
          session.set_residual("w", from->second.residual);
          session.set_state("w", from->second.state);
        }
        for (int step = job.first; step < job.first + job.steps; ++step) {
          std::vector<float> mine = gradient(session.rank(), step, job.count);
          if (step == job.loads) session.set_residual("w", std::vector<float>(job.count, 0.25F));
          if (step == job.bad && session.rank() == 0) mine[7] = std::numeric_limits<float>::infinity();
          if (job.on_device) {
            tensor.assign(mine);
            run_on(session, w, program, tensor.data(), tensor.data());
            host = tensor.read();
          } else {
            host = mine;
            run(session, w, host.data(), host.data());
          }
          for (float& value : host)
            if (value != value) value = 1e9F;  // NaN is equal to nothing
          const std::lock_guard lock(mutex);
          shown.results[session.rank()].push_back(host);
        }
        Saved kept{session.state("w"), session.residual("w")};
        const std::lock_guard lock(mutex);
        shown.kept[session.rank()] = std::move(kept);
      },
      [&](int, SessionOptions& options) {
        for (std::uint32_t& host : options.host_of) host /= job.ranks_of_host;
        options.device_lane = job.lane;
      });
  return shown;
}

/// The job on a device, where kernels are launched, and on the CPU.
void expect_same(Job job) {
  SCOPED_TRACE(job.codec + " by " + job.topology);
  job.on_device = true;
  const int launches = standin_launches();
  const Shown device = run_job(job);
  EXPECT_GT(standin_launches(), launches) << "no kernel was launched";
  job.on_device = false;
  EXPECT_TRUE(device == run_job(job));
}

bool gathers(const std::string& codec) { return casync::gathers(make_codec(codec)->info()); }
bool is_whole(const std::string& codec) { return make_codec(codec)->info().whole; }

const std::vector<std::string> kCodecs{"onebit",
                                       "terngrad(bits=4)",
                                       "threelc",
                                       "tbq",
                                       "graddrop(drop=0.9)",
                                       "dgc(ratio=0.01)",
                                       "adacomp",
                                       "powersgd(rank=2, start_step=0)",
                                       "fp16",
                                       "bf16"};

TEST(Stream, GivesTheBitsOfTheCpu) {
  for (const std::string& codec : kCodecs) {
    for (const std::string topology : {"ps", "direct", "ring"}) {
      if (topology != "direct" && gathers(codec)) continue;
      if (topology == "ring" && is_whole(codec)) continue;
      expect_same({.codec = codec, .topology = topology});
    }
  }
}

TEST(Stream, ARankThatIsAloneComputesThereToo) {
  expect_same({.codec = "fp16", .ranks = 1, .steps = 3});  // its plan is `none`
}

TEST(Stream, CostsOnTheDeviceDecideWhereTheCodecIsOpen) {
  std::atomic<int> measured{0};
  std::map<int, GradientPlan> plans;
  std::map<int, std::vector<float>> results;
  std::mutex mutex;
  const auto log = [&](const LogRecord& record) {
    measured += record.text.starts_with("measured: ") && record.text.find("onebit") != std::string::npos &&
                record.text.find("ns/B to encode and decode on the device") != std::string::npos;
  };
  const auto body = [&](Session& session) {
    const Program program;
    const Floats tensor(program, kCount);
    const std::uint32_t w = session.define("w", signature("auto(onebit)", "ps", MemoryKind::device), "stream_test.cc");
    session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
    for (int step = 0; step < 4 || session.plan(w)->epoch == 0; ++step) {
      ASSERT_LT(step, 1000) << "it was never planned again";
      tensor.assign(gradient(session.rank(), step));
      run_on(session, w, program, tensor.data(), tensor.data());
    }
    const std::lock_guard lock(mutex);
    plans[session.rank()] = *session.plan(w);
    results[session.rank()] = tensor.read();
  };
  spawn(2, body, [](int, SessionOptions& options) { options.log_level = LogLevel::info; }, {}, log);
  EXPECT_EQ(measured, 1);
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_EQ(plans[0].epoch, MeasuredPlanning::kMeasuredEpoch);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Stream, ACodecThatKeepsAStateIsTimedAndOneThatIsNotIsPlannedToo) {
  for (const std::string codec : {"tbq", "dgc(ratio=0.01)", "powersgd(rank=2, start_step=0)", "fp16"}) {
    SCOPED_TRACE(codec);
    spawn(2, [&](Session& session) {
      const Program program;
      const Floats tensor(program, kCount);
      const std::uint32_t w =
          session.define("w", signature("auto(" + codec + ")", "direct", MemoryKind::device), "stream_test.cc");
      session.add_device_code(0, kernels_of("common"), codec, kernels_of(codec));
      for (int step = 0; step < 4 || session.plan(w)->epoch == 0; ++step) {
        ASSERT_LT(step, 60) << "it was never planned again";
        tensor.assign(gradient(session.rank(), step));
        run_on(session, w, program, tensor.data(), tensor.data());
      }
    });
  }
}

TEST(Stream, ARingAndHostsOfSeveralRanksGoThroughTheHostWhereTheyMust) {
  expect_same({.codec = "onebit", .topology = "ring", .ranks = 4, .steps = 3});
  expect_same({.codec = "onebit", .topology = "two_level", .ranks = 4, .steps = 3, .ranks_of_host = 2});
}

TEST(Stream, DevicesSendToEachOther) {
  for (const std::string topology : {"ps", "direct", "ring", "two_level"}) {
    for (const std::string codec : {"onebit", "none", "fp16", "tbq", "graddrop(drop=0.9)", "dgc(ratio=0.01)"}) {
      if (gathers(codec) && topology != "direct") continue;
      const int copies = standin_copies_between();
      expect_same({.codec = codec,
                   .topology = topology,
                   .ranks = 4,
                   .steps = 3,
                   .ranks_of_host = 2,
                   .count = 4 * kCount,
                   .lane = "ipc"});
      EXPECT_GT(standin_copies_between(), copies) << codec << " by " << topology << ": nothing went by the lane";
    }
  }
}

TEST(Stream, DevicesSendToEachOtherByNccl) {
  setenv("CASYNC_NCCL", STANDIN_NCCL, 1);
  for (const std::string topology : {"direct", "ring"}) {
    for (const std::string codec : {"onebit", "none"}) {
      const int groups = standin_nccl_groups();
      expect_same({.codec = codec, .topology = topology, .ranks = 4, .steps = 3, .count = 4 * kCount, .lane = "nccl"});
      EXPECT_GT(standin_nccl_groups(), groups) << codec << " by " << topology << ": nothing went by the lane";
    }
  }
}

/// The host looks for the source that is to blame, and all memory is the device's.
TEST(Stream, DevicesThatSendToEachOtherNameWhatIsNotFinite) {
  for (const std::string codec : {"none", "onebit", "dgc(ratio=0.01)", "powersgd(rank=8, start_step=0)"}) {
    const std::string topology = gathers(codec) ? "direct" : "ps";
    const int copies = standin_copies_between();
    expect_same({.codec = codec,
                 .topology = topology,
                 .ranks = 2,
                 .steps = 3,
                 .bad = 2,
                 .count = 4 * kCount,
                 .columns = 500,
                 .lane = "ipc"});
    EXPECT_GT(standin_copies_between(), copies) << codec << " by " << topology << ": nothing went by the lane";
  }
}

/// With the gradient, where it is not kept.
TEST(Stream, AResidualThatIsPutInIsSent) {
  for (const std::string codec : {"onebit", "fp16", "none"}) {
    expect_same({.codec = codec,
                 .ranks = 2,
                 .loads = 2,
                 .ranks_of_host = 2,
                 .count = 4 * kCount,
                 .lane = codec == "none" ? "ipc" : "host"});
  }
}

/// Also where the device has the code of the codec that does not.
TEST(Stream, WhatDecaysOrIsKeptInFewerBitsIsComputedByTheHost) {
  for (const std::string codec : {"onebit", "topk"}) {
    for (const std::string feedback : {"(feedback_decay=0.5)", "(feedback_bits=8)"}) {
      Job job{.codec = codec + feedback, .topology = "direct", .code = codec};
      const Shown host = run_job(job);
      job.on_device = true;
      EXPECT_TRUE(host == run_job(job)) << job.codec;
      job.codec = codec;
      EXPECT_FALSE(host == run_job(job)) << codec << " has another residual";
    }
  }
}

/// In the first step, so that the next one settles on the device, and in one that is computed there.
TEST(Stream, AGradientThatIsNotFiniteLeavesWhatIsKeptAsOnTheCpu) {
  for (const std::string& codec : kCodecs) {
    const std::string topology = gathers(codec) ? "direct" : "ps";
    expect_same({.codec = codec, .topology = topology, .steps = 3, .bad = 0});
    expect_same({.codec = codec, .topology = topology, .steps = 3, .bad = 1});
  }
}

TEST(Stream, WhatIsSavedOfADeviceIsResumedOnTheCpuAndBack) {
  for (const std::string& codec : kCodecs) {
    const std::string topology = gathers(codec) ? "direct" : "ps";
    SCOPED_TRACE(codec);
    const Shown uninterrupted = run_job({.codec = codec, .topology = topology, .steps = 6});
    for (const bool on_device : {true, false}) {
      Shown shown = run_job({.codec = codec, .topology = topology, .on_device = on_device, .steps = 3});
      const Shown rest = run_job(
          {.codec = codec, .topology = topology, .on_device = !on_device, .first = 3, .steps = 3, .from = shown.kept});
      for (const auto& [rank, results] : rest.results)
        shown.results[rank].insert(shown.results[rank].end(), results.begin(), results.end());
      EXPECT_TRUE(shown.results == uninterrupted.results);
      EXPECT_TRUE(rest.kept == uninterrupted.kept);
    }
  }
}

/// What a gradient of several has in a step.
std::vector<float> part_of(const std::vector<float>& all, std::size_t tensor) {
  return {all.begin(),
          all.begin() + static_cast<std::ptrdiff_t>(tensor % 10 == 9 ? 4097 + 13 * tensor : 1 + 7 * tensor)};
}

/// Steps of two ranks, in which all gradients are outstanding at once. `launches`: how many kernels the last one took.
std::map<int, std::vector<std::vector<float>>> run_many(std::size_t tensors, bool on_device, int& launches) {
  std::map<int, std::vector<std::vector<float>>> results;
  std::mutex mutex;
  spawn(2, [&](Session& session) {
    const Program program;
    std::vector<std::unique_ptr<Floats>> there;
    std::vector<std::vector<float>> here(tensors);
    std::vector<std::uint32_t> registrations;
    if (on_device) session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
    for (std::size_t i = 0; i < tensors; ++i) {
      here[i] = part_of(gradient(session.rank(), 0), i);
      there.push_back(std::make_unique<Floats>(program, here[i].size()));
      Signature of = signature("onebit", "ps", on_device ? MemoryKind::device : MemoryKind::host);
      of.shape = {static_cast<std::int64_t>(here[i].size()), 1};
      registrations.push_back(session.define("w" + std::to_string(i), of, "stream_test.cc"));
    }
    for (int step = 0; step < 3; ++step) {
      if (step == 2 && session.rank() == 0) launches = standin_launches();
      std::vector<Session::Handle> handles;
      for (std::size_t i = 0; i < tensors; ++i) {
        here[i] = part_of(gradient(session.rank(), step), i);
        if (on_device) there[i]->assign(here[i]);
      }
      if (on_device) there[0]->assign_slowly(here[0]);  // until then all are submitted
      for (std::size_t i = 0; i < tensors; ++i) {
        void* const data = on_device ? there[i]->data() : here[i].data();
        const DeviceStream stream = on_device ? program.here() : DeviceStream{};
        handles.push_back(session.submit(registrations[i], data, data, 0, true, {}, stream));
      }
      for (std::size_t i = 0; i < tensors; ++i) {
        while (!session.wait(handles[i], 1'000'000'000)) {
        }
        if (on_device) session.order_after(handles[i], program.here().stream);
        session.collect(handles[i]);
        const std::lock_guard lock(mutex);
        results[session.rank()].push_back(on_device ? there[i]->read() : here[i]);
      }
    }
    if (session.rank() == 0) launches = standin_launches() - launches;
  });
  return results;
}

TEST(Stream, ManyGradientsAreComputedByFewLaunches) {
  for (const std::size_t tensors : {38U, 399U}) {
    int launches = 0;
    int none = 0;
    EXPECT_TRUE(run_many(tensors, true, launches) == run_many(tensors, false, none));
    EXPECT_LT(launches, static_cast<int>(2 * tensors)) << "one after the other they take some 7 of each rank";
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
  const Shown right = run_job({.codec = "onebit", .ranks = 2, .steps = kWatched});
  standin_delay_kernels(4);  // of the codec
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
    // Who is late shows what is lost, and a machine that is busy makes others late: one run of a few is enough.
    bool is_noticed = false;
    for (int attempt = 0; attempt < 4 && !is_noticed; ++attempt) {
      standin_drop(n);
      is_noticed = wrong_results(right) > 0;
    }
    EXPECT_TRUE(is_noticed) << "nobody noticed that number " << n << " of " << ordered << " was lost";
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

/// Of two ranks, in whose third step launch number `n` of either fails: how many elements of a residual, or of what a
/// codec calls pending, are what they were plus the gradient.
int given_back(const std::string& codec, const std::string& lane, int n) {
  constexpr std::size_t kMany = 4 * kCount;
  std::atomic<int> found{0};
  const auto held_back = [](Session& session) {
    FloatArray values = session.residual("w");
    if (values.empty()) values = session.state("w").values.back();  // the pending one is the last of each codec
    return values;
  };
  const auto body = [&](Session& session) {
    const Program program;
    const Floats tensor(program, kMany);
    session.add_device_code(0, kernels_of("common"), codec, kernels_of(codec));
    const std::string topology = gathers(codec) ? "direct" : "ps";
    const std::uint32_t w =
        session.define("w", signature(codec, topology, MemoryKind::device, kMany), "stream_test.cc");
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> mine = gradient(session.rank(), step, kMany);
      const FloatArray before = step < 2 ? FloatArray{} : held_back(session);
      tensor.assign(mine);
      if (step == 2 && session.rank() == 0) standin_fail("cuLaunchKernel", n, 214);
      try {
        run_on(session, w, program, tensor.data(), tensor.data());
      } catch (const Aborted&) {
        if (before.empty()) throw;  // the other one is ahead
        const FloatArray after = held_back(session);
        EXPECT_EQ(after.size(), kMany);
        for (std::size_t i = 0; i < after.size(); ++i) found += std::abs(after[i] - before[i] - mine[i]) < 1e-5F;
        throw;
      }
    }
  };
  EXPECT_ANY_THROW(spawn(2, body, [&](int, SessionOptions& options) {
    options.host_of = {0, 0};
    options.device_lane = lane;
  }));
  standin_fail("cuLaunchKernel", 0, 0);
  return found;
}

TEST(Stream, WhatIsInterruptedIsGivenBack) {
  for (const std::string lane : {"host", "ipc"}) {
    for (const std::string codec : {"onebit", "tbq", "dgc(ratio=0.01)", "adacomp", "powersgd(rank=2, start_step=0)"}) {
      int found = 0;
      for (const int n : {2, 5, 7}) found += given_back(codec, lane, n);
      EXPECT_GT(found, 0) << codec << " by the " << lane;
    }
  }
}

/// Whatever it was asked for: the host does the work of a gradient, or the session ends with the device's error.
TEST(Stream, ADeviceThatHasNoMemoryLeftIsNoFault) {
  for (const std::string lane : {"host", "ipc"}) {
    int well = 0;
    for (int n = 1; n <= 8; ++n) {
      const auto body = [&](Session& session) {
        const Program program;
        const Floats tensor(program, 4 * kCount);
        session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
        const std::uint32_t w =
            session.define("w", signature("onebit", "ps", MemoryKind::device, 4 * kCount), "stream_test.cc");
        for (int step = 0; step < 4; ++step) {
          if (step == 1 && session.rank() == 0) standin_fail("cuMemAlloc_v2", n, 2);
          run_on(session, w, program, tensor.data(), tensor.data());
        }
      };
      try {
        spawn(2, body, [&](int, SessionOptions& options) {
          options.host_of = {0, 0};
          options.device_lane = lane;
        });
        ++well;
      } catch (const Aborted& error) {
        EXPECT_NE(std::string(error.what()).find("device 0 failed"), std::string::npos) << error.what();
      }
      standin_fail("cuMemAlloc_v2", 0, 0);
    }
    if (lane == "host") {
      EXPECT_GT(well, 0);
    }
  }
}

TEST(Stream, ADeviceThatIsLostEndsTheSessionWithItsError) {
  EXPECT_GE(errors_of_device([] { standin_lose_device(1); }), 1);
  standin_lose_device(0);
}

TEST(Stream, ADeviceThatHangsDoesNotHangAShutdown) {
  std::atomic<int> named{0};
  std::barrier both(2);
  spawn(2, [&](Session& session) {
    const Program program;
    auto* const tensor = new Floats(program, kCount);  // which the device may touch yet
    const std::uint32_t w = session.define("w", signature("onebit", "ps", MemoryKind::device), "stream_test.cc");
    session.add_device_code(0, kernels_of("common"), "onebit", kernels_of("onebit"));
    for (int step = 0; step < 3; ++step) run_on(session, w, program, tensor->data(), tensor->data());
    both.arrive_and_wait();
    standin_delay_kernels(60'000);
    const int launches = standin_launches();
    const Session::Handle handle = session.submit(w, tensor->data(), tensor->data(), 0, true, {}, program.here());
    while (standin_launches() == launches) session.poll(handle);
    session.shutdown();
    standin_delay_kernels(0);
    try {
      session.collect(handle);
    } catch (const Aborted& error) {
      named +=
          error.facts.kind == ErrorKind::device &&
          std::string(error.what()).find("device 0 failed: what was launched does not end in 5 s") != std::string::npos;
    }
  });
  EXPECT_GE(named, 1) << "of a rank whose device it was, or that heard of it";
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
