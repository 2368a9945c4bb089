// Logs of virtual and of real ranks: a fresh Engine does the same again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <random>

#include "casync/error.hpp"
#include "executor/check.hpp"
#include "record/event_log.hpp"
#include "session/world.hpp"

namespace casync::test {
namespace {

/// A directory that goes with the test.
class LogTest : public testing::Test {
 protected:
  LogTest() { std::filesystem::create_directory(directory_); }
  ~LogTest() override { std::filesystem::remove_all(directory_); }
  /// Some schedule of several ranks without faults.
  static Schedule undisturbed() {
    std::uint64_t seed = 0;
    Schedule schedule = draw(seed, {});
    while (schedule.size < 3 || !schedule.script.faults.empty() ||
           schedule.script.tensors.front().signature.shape.numel() == 0) {
      schedule = draw(++seed, {});
    }
    return schedule;
  }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }

 private:
  std::filesystem::path directory_ = std::filesystem::temp_directory_path() / detail::concat("casync_log_", getpid());
};

TEST_F(LogTest, SchedulesReplayToTheSameActions) {
  std::uint64_t actions = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Schedule schedule = draw(seed, {});
    schedule.options.event_log = path(detail::concat("seed", seed));
    EXPECT_TRUE(verify(schedule).failures.empty()) << schedule.print();
    for (int r = 0; r < schedule.size; ++r) {
      const Replay again = replay(detail::concat(schedule.options.event_log, '.', r));
      EXPECT_EQ(again.difference, "") << "rank " << r << " of " << schedule.print();
      actions += again.actions;
    }
  }
  EXPECT_GT(actions, 100'000U);
}

TEST_F(LogTest, RealRanksReplayToTheSameActions) {
  std::array<std::vector<std::vector<float>>, 4> memory;  // outlives the sessions: bodies may come after the abort
  spawn(
      4,
      [&memory](Session& session) {
        std::mt19937 random(static_cast<unsigned>(session.rank()));
        auto& values = memory[static_cast<std::size_t>(session.rank())];
        for (int step = 0; step < 4; ++step) {
          std::vector<Session::Handle> handles;
          for (const char* codec :
               {"none", "onebit", "terngrad(bits=2)", "fp16", "test_topk(ratio=0.1)", "test_state", "auto"}) {
            for (const std::int64_t numel : {100, 50'000}) {
              Signature signature;
              signature.shape = {numel, 1};
              signature.dims = detail::concat("(", numel, ",)");
              signature.compression = codec;
              signature.topology = "auto";
              values.emplace_back(static_cast<std::size_t>(numel));
              for (float& value : values.back()) value = static_cast<float>(random()) * 1e-9F;
              const auto registration = session.define(detail::concat(codec, numel), signature, "replay_test.cc");
              handles.push_back(session.submit(registration, values.back().data(), values.back().data()));
            }
          }
          if (step == 3 && session.rank() == 2) session.abort("rank 2 gives up");
          for (const auto handle : handles) {
            while (!session.wait(handle, 1'000'000'000)) {
            }
            try {
              session.collect(handle);
            } catch (const Aborted&) {
              EXPECT_GE(step, 2);  // some rank may be one step behind
            }
          }
        }
      },
      [this](int rank, SessionOptions& options) { options.event_log = path(detail::concat("real.", rank)); });
  for (int r = 0; r < 4; ++r) {
    const Replay again = replay(path(detail::concat("real.", r)));
    EXPECT_EQ(again.difference, "") << "rank " << r;
    EXPECT_GT(again.actions, 500U);
  }
}

TEST_F(LogTest, ADifferentEventGivesADifference) {
  Schedule schedule = undisturbed();
  schedule.options.event_log = path("log");
  verify(schedule);
  std::fstream file(path("log.0"), std::ios::in | std::ios::out | std::ios::binary);
  std::string content{std::istreambuf_iterator<char>(file), {}};
  ASSERT_NE(content.find("gradient0"), std::string::npos);
  // Another name is defined, wherever it is, and what the Engine says of it differs.
  for (auto at = content.find("gradient0"); at != std::string::npos; at = content.find("gradient0", at)) {
    content[at] = 'G';
  }
  file.clear();  // of having read to the end
  file.seekp(0);
  file << content;
  file.close();
  const Replay again = replay(path("log.0"));
  EXPECT_NE(again.difference, "");
}

TEST_F(LogTest, AnyChangedByteIsADifferenceOrAnErrorAndNeverACrash) {
  Schedule schedule = undisturbed();
  schedule.options.event_log = path("log");
  verify(schedule);
  std::ifstream file(path("log.0"), std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  std::mt19937 random(7);
  int noticed = 0;
  for (int i = 0; i < 300; ++i) {
    std::string changed = content;
    changed[random() % content.size()] ^= static_cast<char>(1U << random() % 8);
    std::ofstream(path("changed"), std::ios::binary) << changed;
    try {
      noticed += replay(path("changed")).difference.empty() ? 0 : 1;
    } catch (const Error&) {
      ++noticed;
    }
  }
  EXPECT_GT(noticed, 100);  // some fields decide nothing: times, counts of bytes
}

TEST_F(LogTest, ALogCutShortReplaysAsFarAsItGoes) {
  Schedule schedule = undisturbed();
  schedule.options.event_log = path("log");
  verify(schedule);
  const auto size = std::filesystem::file_size(path("log.0"));
  const Replay whole = replay(path("log.0"));
  for (std::uintmax_t left = size / 2; left > size / 2 - 2000; left -= 7) {  // between and within causes
    std::filesystem::resize_file(path("log.0"), left);
    const Replay half = replay(path("log.0"));
    ASSERT_EQ(half.difference, "") << left << " of " << size << " bytes";
    ASSERT_LT(half.events, whole.events);
    ASSERT_GT(half.events, whole.events / 4);
  }
}

TEST_F(LogTest, OtherFilesAreRefused) {
  EXPECT_THROW(replay(path("absent")), InvalidArgument);
  std::ofstream(path("text")) << "This is no event log, but it is long enough to be one.";
  EXPECT_THROW(replay(path("text")), CorruptPayload);
}

}  // namespace
}  // namespace casync::test
