// Several gradients in one launch: the bytes of each, and how many launches and copies it takes.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codec/cuda/on_device.hpp"

namespace casync::test {
namespace {

/// So many gradients of odd sizes, from 1 element on, of which each tenth is longer than a unit of a quantiser.
std::vector<Given> many(const std::string& codec, std::size_t count) {
  std::vector<Given> all;
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::int64_t>(i % 10 == 9 ? 4097 + 13 * i : 1 + 7 * i % 1000);
    const Shape shape{n, 1};
    all.push_back({.codec = codec, .shape = shape, .range = {0, n}, .raw = {gradient(n, i)}});
  }
  return all;
}

/// Those with code of their own.
std::vector<std::string> generated() {
  std::vector<std::string> found;
  for (const std::string& codec : kCodecs)
    if (make_codec(codec)->device_code() != nullptr) found.push_back(codec);
  return found;
}

class Together : public OnDevice {
 protected:
  /// Computes all, and expects the CPU's bytes. Returns how many kernels and copies it took.
  std::pair<int, int> compute(const std::vector<Given>& all, std::size_t groups = 1) {
    const auto codec = make_codec(all[0].codec);
    DeviceCodec runs(device_, codec, kernels_of(all[0].codec));
    std::vector<std::unique_ptr<There>> there;
    std::vector<DeviceJob> jobs;
    for (const Given& given : all) {
      there.push_back(std::make_unique<There>(device_.driver(), *codec, given));
      jobs.push_back(there.back()->job());
    }
    launch(runs, jobs);  // ranges are known from here on
    for (std::size_t i = 0; i < all.size(); ++i) {
      there[i] = std::make_unique<There>(device_.driver(), *codec, all[i]);
      jobs[i] = there[i]->job();
    }
    const int launches = standin_launches();
    const int copies = standin_copies();
    EXPECT_EQ(launch(runs, jobs), groups);
    const std::pair used{standin_launches() - launches, standin_copies() - copies};
    for (std::size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].codec + ", gradient " + std::to_string(i));
      expect_same(all[i], there[i]->found());
    }
    return used;
  }
};

TEST_F(Together, ManyGradientsAreEncodedByAsManyKernelsAsOne) {
  for (const std::string& codec : generated()) {
    for (const std::size_t count : {1U, 38U, 399U}) {
      std::vector<Given> all = many(codec, count);
      for (Given& given : all) {
        given.encodes = true;
        given.mid = 0.5F;
        if (make_codec(codec)->info().feedback == Feedback::wrapper) given.residual = gradient(given.shape.numel(), 7);
      }
      const int kernels = make_codec(codec)->info().fixed_size ? 3 : 5;  // encode, (place, move,) copy, report
      EXPECT_EQ(compute(all), std::pair(kernels, count == 1 ? 0 : 1)) << codec << " of " << count;
    }
  }
}

TEST_F(Together, ManyOwnersMergeAndEncodeByAsManyKernelsAsOne) {
  for (const std::string& codec : generated()) {
    for (const std::size_t count : {1U, 38U}) {
      std::vector<Given> all = many(codec, count);
      for (Given& given : all) {
        for (const std::uint64_t seed : {1, 2})
          given.encoded.push_back(payload_of(codec, given.shape, given.range, seed));
        given.encodes = given.delivers = true;
        given.mid = 1.0F / 3.0F;
      }
      // copy, load, twice (locate,) decode and report; encode, (place, move,) copy, report, decode, look
      const int kernels = make_codec(codec)->info().fixed_size ? 11 : 15;
      EXPECT_EQ(compute(all), std::pair(kernels, 1)) << codec << " of " << count;
    }
  }
}

TEST_F(Together, LongPayloadsAreCopiedByTheEngineAndShortOnesByAKernel) {
  std::vector<Given> all;
  for (const std::int64_t n : {600'000, 100, 700'001}) {  // onebit: 75 kB, 21 B, 87 kB
    all.push_back({.codec = "onebit", .shape = {n, 1}, .range = {0, n}});
    all.back().encoded = {payload_of("onebit", all.back().shape, all.back().range, 1)};
    all.back().delivers = true;
  }
  EXPECT_EQ(compute(all), std::pair(4, 1 + 2)) << "copy, decode, report, look";
}

TEST_F(Together, ASumIsAddedToWhatIsThere) {
  std::vector<Given> all = many("onebit", 3);
  for (Given& given : all) {
    given.encoded = {payload_of("onebit", given.shape, given.range, 1)};
    given.in_place = 0;
  }
  all[1].raw[0][0] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(compute(all).first, 4) << "copy, decode, report, look";
  for (Given& given : all) given.pre = 2.0F;
  EXPECT_EQ(compute(all).first, 5) << "and load";
}

TEST_F(Together, SegmentsOfOtherStepsGoApart) {
  std::vector<Given> all = many("threelc", 6);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].encodes = i % 2 == 0;
    all[i].delivers = !all[i].encodes;
  }
  compute(all, 2);
}

TEST_F(Together, AGroupHasNoMoreElementsThanItHasMemoryFor) {
  std::vector<Segment> segments(5);
  std::vector<DeviceJob> jobs;
  std::byte payload{};
  const Source source{.raw = true};
  for (Segment& segment : segments) {
    segment.shape = {DeviceCodec::kMostTogether, 1};
    segment.range = {0, DeviceCodec::kMostTogether / 2};
    segment.sources = {&source, 1};
    segment.payload = {&payload, 1};
    jobs.push_back({&segment, nullptr});
  }
  segments[3].range.end *= 2;
  DeviceCodec codec(device_, make_codec("threelc"), kernels_of("threelc"));
  const auto groups = codec.groups(jobs);
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].size(), 2U);
  EXPECT_EQ(groups[2][0].segment, &segments[3]);
}

TEST(Division, GivesBlocksToUnitsFirstAndThenToEach) {
  using codec::cuda::DeviceKernel;
  using codec::cuda::Grid;
  const auto divided = [](Grid grid, std::int64_t units, std::int64_t longest, int most) {
    const DeviceKernel kernel{.name = "kernel", .threads = 512, .grid = grid};
    const auto division = codec::cuda::divide(kernel, units, longest, most);
    return std::pair(division.teams, division.blocks);
  };
  EXPECT_EQ(divided(Grid::wide, 1, 1 << 20, 264), std::pair(1, 128)) << "sixteen elements to a thread";
  EXPECT_EQ(divided(Grid::wide, 1, (1 << 20) + 1, 264), std::pair(1, 129));
  EXPECT_EQ(divided(Grid::wide, 64, 1 << 20, 264), std::pair(64, 4));
  EXPECT_EQ(divided(Grid::wide, 399, 1 << 20, 264), std::pair(264, 1));
  EXPECT_EQ(divided(Grid::wide, 5, 100, 264), std::pair(5, 1));
  EXPECT_EQ(divided(Grid::wide, 1, std::int64_t{1} << 40, 5000), std::pair(1, codec::cuda::kMostBlocks));
  EXPECT_EQ(divided(Grid::wide, 1, 0, 0), std::pair(1, 1)) << "a kernel of which no block fits fails by itself";
  EXPECT_EQ(divided(Grid::teams, 16'000, 4096, 4224), std::pair(4224, 1));
}

}  // namespace
}  // namespace casync::test
