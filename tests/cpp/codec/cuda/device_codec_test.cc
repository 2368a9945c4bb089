// Segments on a device give the bytes of the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codec/cuda/on_device.hpp"

namespace casync::test {
namespace {

/// Whole gradients, and of long ones a part.
std::vector<std::pair<Shape, Range>> places(const Codec& codec) {
  std::vector<std::pair<Shape, Range>> found;
  for (const Shape shape :
       {Shape{1, 1}, Shape{17, 1}, Shape{5000, 1}, Shape{40, 257}, Shape{3, 9000}, Shape{20'001, 1}}) {
    found.push_back({shape, {0, shape.numel()}});
    const Range part{codec.cut(shape, shape.numel() / 3), codec.cut(shape, shape.numel() * 2 / 3)};
    if (part.size() > 0) found.push_back({shape, part});
  }
  return found;
}

TEST_F(OnDevice, EncodesAsTheCpu) {
  for (const std::string& codec : kCodecs) {
    const bool keeps = make_codec(codec)->info().feedback == Feedback::wrapper;
    for (const auto& [shape, range] : places(*make_codec(codec))) {
      Given given{.codec = codec, .shape = shape, .range = range, .raw = {gradient(shape.numel(), 1)}};
      given.encodes = true;
      expect_same(given);
      if (keeps) given.residual = gradient(shape.numel(), 2);
      given.mid = 0.25F;
      given.pre = 2.0F;
      expect_same(given);
      given.delivers = true;
      expect_same(given);
      given.post = 3.0F;
      expect_same(given);
    }
  }
}

TEST_F(OnDevice, DecodesAndMergesAsTheCpu) {
  for (const std::string& codec : kCodecs) {
    for (const auto& [shape, range] : places(*make_codec(codec))) {
      Given given{.codec = codec, .shape = shape, .range = range};
      given.encoded = {payload_of(codec, shape, range, 1)};
      given.delivers = true;
      expect_same(given);
      given.post = 3.0F;
      expect_same(given);
      given.encoded.push_back(payload_of(codec, shape, range, 2));
      given.encoded.push_back(payload_of(codec, shape, range, 3));
      given.mid = 1.0F / 3.0F;
      expect_same(given);
      given.mid = given.post = 1.0F;
      given.raw = {gradient(shape.numel(), 4)};
      expect_same(given);
      given.raw_last = true;
      expect_same(given);
    }
  }
}

TEST_F(OnDevice, AnOwnerMergesAndEncodesAsTheCpuAndEndsWithWhatAllDecode) {
  for (const std::string& codec : kCodecs) {
    const bool keeps = make_codec(codec)->info().feedback == Feedback::wrapper;
    for (const auto& [shape, range] : places(*make_codec(codec))) {
      Given given{.codec = codec, .shape = shape, .range = range, .raw = {gradient(shape.numel(), 1)}};
      given.encoded = {payload_of(codec, shape, range, 2), payload_of(codec, shape, range, 3)};
      given.encodes = given.delivers = true;
      given.mid = 1.0F / 3.0F;
      if (keeps) given.residual = gradient(shape.numel(), 5);
      expect_same(given);
    }
  }
}

TEST_F(OnDevice, AResultMayTakeThePlaceOfASource) {
  for (const std::string& codec : kCodecs) {
    const Shape shape{40, 257};
    Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .raw = {gradient(shape.numel(), 1)}};
    given.in_place = 0;
    expect_same(given);
    given.encoded = {payload_of(codec, shape, given.range, 2), payload_of(codec, shape, given.range, 3)};
    expect_same(given);
    given.raw_last = true;  // what it overwrites is read last
    expect_same(given);
    given.encodes = true;
    expect_same(given);
  }
}

/// All bits of a NaN may be set, in each format.
void spoil(Bytes& payload) { std::memset(payload.data(), 0xff, std::min<std::size_t>(payload.size(), sizeof(float))); }

class Rounds : public OnDevice, public testing::WithParamInterface<std::string> {};

TEST_P(Rounds, AreThoseOfTheCpu) {
  const std::string& codec = GetParam();
  const auto last = static_cast<std::uint8_t>(make_codec(codec)->info().rounds.size() - 1);
  for (const DType dtype : {DType::float32, DType::float16}) {
    for (const Shape shape : {Shape{40, 57}, Shape{3, 200}, Shape{1, 1}}) {
      for (const bool finite : {true, false}) {
        Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .mid = 0.5F, .dtype = dtype};
        const std::vector<float> of_this = gradient(shape.numel(), 1);
        for (std::uint8_t round = 0; round <= last; ++round) {
          given.round = round;
          given.raw = {of_this};
          given.encoded = {};
          given.residual = gradient(shape.numel(), 2);
          given.encodes = true;
          given.delivers = false;
          expect_same(given);
          Bytes mine = on_cpu(given).payload;
          if (!finite && round == last) spoil(mine);
          given.raw = {};
          given.residual.reset();
          for (const std::size_t ranks : {1U, 3U, 33U}) {
            given.encoded.assign(ranks, mine);
            expect_same(given);
            given.encodes = false;
            given.delivers = true;
            if (round == last) expect_same(given);
            given.post = 3.0F;
            if (round == last) expect_same(given);
            given.post = 1.0F;
            given.encodes = true;
            given.delivers = false;
          }
          given.previous = on_cpu(given).payload;
          if (!finite) spoil(given.previous);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Rounds, testing::Values("powersgd(rank=3)", "randomk(ratio=0.1)", "topkc", "thc"));

/// A payload of the round before that cannot be is seen at once.
TEST_F(OnDevice, RefusesAnotherLengthOfTheRoundBefore) {
  Given given{.codec = "powersgd(rank=3)", .shape = {40, 57}, .range = {0, 40 * 57}, .raw = {gradient(40 * 57, 1)}};
  given.round = 1;
  given.previous = Bytes(12);
  given.encodes = true;
  EXPECT_NE(on_cpu(given).refused, "");
  EXPECT_EQ(on_device(given).refused, on_cpu(given).refused);
}

TEST_F(OnDevice, SettlesAsTheCpu) {
  const Shape shape{40, 257};
  const auto codec = make_codec("tbq");
  const gpu::Driver& driver = device_.driver();
  DeviceCodec runs(device_, codec, kernels_of("tbq"));
  const Pinned report_memory(driver, sizeof(SegmentReport));
  auto* const report = reinterpret_cast<SegmentReport*>(report_memory.bytes());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    for (const std::vector<float>& others : {std::vector<float>{}, {0.1F, 0.3F}, std::vector(40, 0.7F), {nan, 0.1F}}) {
      const Bytes raw = elements(gradient(shape.numel(), 1), dtype);
      Segment segment = segment_of(*codec, {.codec = "tbq", .shape = shape, .range = {0, shape.numel()}});
      segment.dtype = dtype;
      segment.pre = 0.5F;
      Source source{raw.data(), raw.size(), true};
      segment.sources = {&source, 1};
      std::vector<float> proposed(1);
      codec->propose(segment, proposed);

      const Memory there(driver, raw.data(), raw.size());
      const Pinned values(driver, (1 + others.size()) * sizeof(float));
      source.data = there.as<void>();
      segment.payload = {values.bytes(), sizeof(float)};
      arena_->rewind();
      *report = {};
      run(runs.settle({&segment, report}, *arena_, stream_, *common_));
      EXPECT_EQ(report->payload_bytes, 4);
      EXPECT_EQ(*reinterpret_cast<const float*>(values.bytes()), proposed[0]);

      std::ranges::copy(others, reinterpret_cast<float*>(values.bytes()) + 1);
      float mean = 0;
      std::vector<Source> proposals;
      for (std::size_t i = 0; i <= others.size(); ++i) {
        proposals.push_back({values.bytes() + i * sizeof(float), sizeof(float), true});
        mean += i == 0 ? proposed[0] : others[i - 1];
      }
      mean /= static_cast<float>(proposals.size());
      State state(*codec, shape);
      const Memory tau(driver, state.values[0].data(), sizeof(float));
      float* const tau_there = tau.as<float>();
      segment.state = state.pointers();
      if (std::isfinite(mean)) codec->agree(segment, {&mean, 1});
      segment.state = {&tau_there, 1};
      segment.sources = proposals;
      segment.payload = {};
      arena_->rewind();
      *report = {};
      run(runs.settle({&segment, report}, *arena_, stream_, *common_));
      EXPECT_EQ(report->nonfinite != 0, !std::isfinite(mean));
      EXPECT_EQ(tau.copy<float>(), state.values[0]);
    }
  }
}

/// More than one launch takes. What is overwritten may be any of them.
TEST_F(OnDevice, AddsElementsOfManyRanks) {
  const Shape shape{17, 3};
  for (const std::string codec : {"none", "fp16", "bf16"}) {
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      for (const int sources : {31, 32, 33, 63, 64, 70}) {
        Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .dtype = dtype};
        for (int i = 0; i < sources; ++i) given.raw.push_back(gradient(shape.numel(), static_cast<std::uint64_t>(i)));
        given.delivers = true;
        given.mid = 1.0F / static_cast<float>(sources);  // by which `none` divides
        expect_same(given);
        given.mid = 1.0F;
        for (const std::size_t place : {0U, 1U, 30U}) {
          given.in_place = place;
          expect_same(given);
        }
        given.in_place = static_cast<std::size_t>(sources) - 1;
        expect_same(given);
        given.pre = 0.1F;
        given.encoded = {payload_of(codec, shape, given.range, 5, dtype),
                         payload_of(codec, shape, given.range, 6, dtype)};
        expect_same(given);
      }
    }
  }
}

TEST_F(OnDevice, ACastThatOverflowsIsNotFinite) {
  const Shape shape{100, 1};
  Given given{.codec = "fp16", .shape = shape, .range = {0, 100}, .raw = {gradient(100, 1)}};
  given.raw[0][70] = 65520.0F;
  given.encodes = true;
  expect_same(given);
  EXPECT_TRUE(on_device(given).nonfinite);
  given.raw[0][70] = std::nextafter(65520.0F, 0.0F);
  expect_same(given);
  EXPECT_FALSE(on_device(given).nonfinite);
}

TEST_F(OnDevice, TakesEveryFloat) {
  for (const std::string& codec : kCodecs) {
    for (const DType dtype : {DType::float16, DType::bfloat16, DType::float64}) {
      const Shape shape{40, 257};
      Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .raw = {gradient(shape.numel(), 1)}};
      given.dtype = dtype;
      if (!supported(*make_codec(codec), dtype, ReduceOp::sum)) continue;
      given.encoded = {payload_of(codec, shape, given.range, 2, dtype)};
      given.delivers = true;
      expect_same(given);
      given.encodes = true;
      given.mid = 0.5F;
      given.post = 3.0F;
      expect_same(given);
      given.encoded.clear();
      given.in_place = 0;
      expect_same(given);
    }
  }
}

TEST_F(OnDevice, SaysWhatIsNotFinite) {
  for (const std::string& codec : kCodecs) {
    const Shape shape{3, 9000};
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .raw = {gradient(shape.numel(), 1)}};
      given.raw[0][10'000] = bad;
      if (make_codec(codec)->info().feedback == Feedback::wrapper) given.residual = gradient(shape.numel(), 2);
      given.encodes = given.delivers = true;
      expect_same(given);
      EXPECT_TRUE(on_device(given).nonfinite);
      given.encodes = false;
      given.residual.reset();
      expect_same(given);
    }
  }
}

TEST_F(OnDevice, NamesTheSourceThatItRefuses) {
  const Shape shape{5000, 1};
  for (const std::string codec : {"graddrop(drop=0.9)", "threelc"}) {
    Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}};
    for (const std::uint64_t seed : {1, 2, 3}) given.encoded.push_back(payload_of(codec, shape, given.range, seed));
    given.encoded[1].resize(given.encoded[1].size() / 2);
    given.delivers = true;
    EXPECT_EQ(on_device(given).refused, "1") << codec;
    EXPECT_NE(on_cpu(given).refused, "");
  }
  Given given{.codec = "onebit", .shape = shape, .range = {0, shape.numel()}};
  given.encoded = {Bytes(5)};
  given.delivers = true;
  EXPECT_EQ(on_device(given).refused, on_cpu(given).refused) << "a length that cannot be is seen at once";
}

TEST_F(OnDevice, NothingIsDoneForAnEmptyRange) {
  for (const std::string& codec : kCodecs) {
    Given given{.codec = codec, .shape = {0, 1}, .range = {0, 0}, .raw = {{}}};
    given.delivers = true;
    expect_same(given);
  }
}

TEST_F(OnDevice, WhatItDoesNotDoIsSaid) {
  const auto supports = [&](const char* codec, DType dtype = DType::float32, ReduceOp op = ReduceOp::sum) {
    return supported(*make_codec(codec), dtype, op);
  };
  EXPECT_TRUE(supports("onebit"));
  EXPECT_TRUE(supports("onebit", DType::float32, ReduceOp::average));
  EXPECT_TRUE(supports("onebit", DType::float16));
  EXPECT_FALSE(supports("onebit", DType::int32));
  EXPECT_FALSE(supports("onebit", DType::float32, ReduceOp::adasum));
  EXPECT_TRUE(supports("none", DType::bfloat16));
  EXPECT_TRUE(supports("fp16", DType::float64));
  EXPECT_FALSE(supports("fp16", DType::int32));
  EXPECT_FALSE(supports("fp16", DType::float32, ReduceOp::adasum));
  EXPECT_FALSE(supports("none", DType::int32));
  EXPECT_FALSE(supports("none", DType::float64)) << "the CPU adds them in float64";
  EXPECT_FALSE(supports("none", DType::float32, ReduceOp::max));
  EXPECT_TRUE(supports("powersgd"));
  EXPECT_FALSE(supports("test_tworound")) << "no device code";
}

}  // namespace
}  // namespace casync::test
