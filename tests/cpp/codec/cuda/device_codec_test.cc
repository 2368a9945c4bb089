// Segments on the stand-in's device against Codec::run: payloads, residuals, results and reports, bit by bit.
#include "codec/cuda/device_codec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "codec/cuda/element_codec.hpp"
#include "codec/support.hpp"
#include "standin/standin.hpp"

namespace casync::test {
namespace {

namespace gpu = casync::cuda;
using codec::cuda::CommonKernels;
using codec::cuda::DeviceCodec;
using codec::cuda::ElementCodec;
using codec::cuda::SegmentReport;

std::string kernels_of(const std::string& codec) { return KERNELS + codec.substr(0, codec.find('(')) + ".so"; }

bool carried(const Codec& codec, DType dtype, ReduceOp op) {
  return ElementCodec::carries(codec, dtype, op) || DeviceCodec::carries(codec, dtype, op);
}

/// A state as it is after some steps.
State state_of(const Codec& codec, Shape shape) {
  State state(codec, shape);
  for (std::size_t i = 0; i < state.arrays.size(); ++i)
    if (state.arrays[i].per_element) std::ranges::copy(gradient(shape.numel(), 20 + i), state.values[i].begin());
  return state;
}

/// Floats in the memory of the device, or in pinned memory.
class Memory {
 public:
  Memory(const gpu::Driver& driver, const void* values, std::size_t bytes) : driver_(driver), bytes_(bytes) {
    CASYNC_CUDA(driver_, cuMemAlloc_v2, &address_, std::max<std::size_t>(bytes, 1));
    if (bytes > 0) std::memcpy(reinterpret_cast<std::byte*>(address_) + standin_distance(), values, bytes);
  }
  ~Memory() { driver_.cuMemFree_v2(address_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }
  /// After the stream.
  template <typename T>
  std::vector<T> copy() const {
    std::vector<T> values(bytes_ / sizeof(T));
    if (bytes_ > 0)
      std::memcpy(values.data(), reinterpret_cast<const std::byte*>(address_) + standin_distance(), bytes_);
    return values;
  }

 private:
  const gpu::Driver& driver_;
  gpu::DevicePointer address_ = 0;
  std::size_t bytes_;
};

class Pinned {
 public:
  Pinned(const gpu::Driver& driver, std::size_t bytes) : driver_(driver) {
    CASYNC_CUDA(driver_, cuMemHostAlloc, &memory_, std::max<std::size_t>(bytes, 1), gpu::kPortable);
  }
  ~Pinned() { driver_.cuMemFreeHost(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* bytes() const { return static_cast<std::byte*>(memory_); }

 private:
  const gpu::Driver& driver_;
  void* memory_ = nullptr;
};

/// What a segment is made of, for either side.
struct Given {
  std::string codec;
  Shape shape;
  Range range;
  std::vector<std::vector<float>> raw{};  ///< the whole gradient's
  std::vector<Bytes> encoded{};           ///< of the range; they come after the raw sources
  bool raw_last = false;                  ///< the raw ones come last
  std::optional<std::vector<float>> residual{};
  bool encodes = false;
  bool delivers = false;
  std::optional<std::size_t> in_place{};  ///< the result is where this source is, which is raw
  float pre = 1.0F;
  float mid = 1.0F;
  float post = 1.0F;
  DType dtype = DType::float32;
  std::uint8_t round = 0;
  Bytes previous{};

  std::size_t element() const { return size_of(dtype); }
  std::size_t begin() const { return static_cast<std::size_t>(range.begin) * element(); }
  std::size_t bytes() const { return static_cast<std::size_t>(range.size()) * element(); }
};

struct Found {
  Bytes payload;
  std::vector<float> residual;
  std::vector<std::vector<float>> state;
  Bytes out;
  bool nonfinite = false;
  std::string refused;  ///< what CorruptPayload said, or the number of the source
};

class OnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("CASYNC_CUDA_DRIVER", STANDIN_CUDA, 1); }

  OnDevice()
      : device_(gpu::driver(), 0),
        current_(device_),
        stream_(device_.make_stream()),
        common_(std::make_unique<CommonKernels>(device_, kernels_of("common"))),
        arena_(std::make_unique<gpu::Arena>(device_, stream_)) {}
  ~OnDevice() override {
    common_.reset();
    arena_.reset();
    device_.driver().cuStreamDestroy_v2(stream_);
    EXPECT_EQ(standin_device_bytes(), 0U);
    EXPECT_EQ(standin_pinned_bytes(), 0U);
  }

  static Segment segment_of(const Codec& codec, const Given& given) {
    Segment segment;
    segment.shape = given.shape;
    segment.range = given.range;
    segment.dtype = given.dtype;
    segment.name_hash = 0x0123456789abcdefULL;
    segment.sequence = 3;
    segment.rank = 1;
    segment.world = 3;
    segment.momentum = 0.9F;
    segment.round = given.round;
    segment.pre = given.pre;
    segment.mid = given.mid;
    segment.post = given.post;
    EXPECT_TRUE(carried(codec, segment.dtype, segment.op));
    return segment;
  }
  /// Sources, with `raw_at(i)` and `encoded_at(i)` for their memory.
  template <typename Raw, typename Encoded>
  static std::vector<Source> sources_of(const Given& given, const Raw& raw_at, const Encoded& encoded_at) {
    std::vector<Source> sources;
    const auto add_raw = [&] {
      for (std::size_t i = 0; i < given.raw.size(); ++i)
        sources.push_back({raw_at(i) + given.begin(), given.bytes(), true});
    };
    if (!given.raw_last) add_raw();
    for (std::size_t i = 0; i < given.encoded.size(); ++i)
      sources.push_back({encoded_at(i), given.encoded[i].size(), false});
    if (given.raw_last) add_raw();
    return sources;
  }

  static Found on_cpu(const Given& given) {
    const auto codec = make_codec(given.codec);
    Segment segment = segment_of(*codec, given);
    std::vector<Bytes> raw;
    for (const auto& whole : given.raw) raw.push_back(elements(whole, given.dtype));
    Found found;
    found.residual = given.residual.value_or(std::vector<float>{});
    const auto sources = sources_of(
        given, [&](std::size_t i) { return raw[i].data(); }, [&](std::size_t i) { return given.encoded[i].data(); });
    segment.sources = sources;
    if (given.residual) segment.residual = found.residual.data() + given.range.begin;
    segment.previous = given.previous;
    State state = state_of(*codec, given.shape);
    segment.state = state.pointers();
    found.payload.resize(codec->bound(given.shape, segment.dtype, given.range, given.round));
    if (given.encodes) segment.payload = found.payload;
    found.out.resize(given.bytes());
    if (given.delivers) segment.raw_out = found.out.data();
    if (given.in_place) segment.raw_out = raw[*given.in_place].data() + given.begin();
    try {
      codec->run(std::span(&segment, 1));
    } catch (const CorruptPayload& error) {
      found.refused = error.what();
    }
    found.payload.resize(segment.payload_bytes);
    found.nonfinite = segment.nonfinite;
    found.state = state.values;
    if (given.in_place) std::memcpy(found.out.data(), segment.raw_out, found.out.size());
    return found;
  }

  Found on_device(const Given& given) {
    const auto codec = make_codec(given.codec);
    std::unique_ptr<DeviceCodec> runs;
    if (codec->device_code() != nullptr) runs = std::make_unique<DeviceCodec>(device_, codec, kernels_of(given.codec));
    const gpu::Driver& driver = device_.driver();
    std::vector<std::unique_ptr<Memory>> raw;
    std::vector<std::unique_ptr<Pinned>> encoded;
    for (const auto& whole : given.raw) {
      const Bytes content = elements(whole, given.dtype);
      raw.push_back(std::make_unique<Memory>(driver, content.data(), content.size()));
    }
    for (const Bytes& bytes : given.encoded) {
      encoded.push_back(std::make_unique<Pinned>(driver, bytes.size()));
      std::ranges::copy(bytes, encoded.back()->bytes());
    }
    const std::vector<float> kept = given.residual.value_or(std::vector<float>{});
    const Memory residual(driver, kept.data(), kept.size() * sizeof(float));
    const Bytes rubbish(given.bytes(), std::byte{77});
    const Memory out(driver, rubbish.data(), rubbish.size());
    const std::size_t bound = codec->bound(given.shape, given.dtype, given.range, given.round);
    const Pinned payload(driver, bound);
    const Pinned report_memory(driver, sizeof(SegmentReport));
    auto* const report = reinterpret_cast<SegmentReport*>(report_memory.bytes());

    Segment segment = segment_of(*codec, given);
    const auto sources = sources_of(
        given, [&](std::size_t i) { return raw[i]->as<std::byte>(); },
        [&](std::size_t i) { return encoded[i]->bytes(); });
    segment.sources = sources;
    const Pinned previous(driver, given.previous.size());
    std::ranges::copy(given.previous, previous.bytes());
    segment.previous = {previous.bytes(), given.previous.size()};
    if (given.residual) segment.residual = residual.as<float>() + given.range.begin;
    std::vector<std::unique_ptr<Memory>> state;
    std::vector<float*> state_pointers;
    for (const auto& values : state_of(*codec, given.shape).values) {
      state.push_back(std::make_unique<Memory>(driver, values.data(), values.size() * sizeof(float)));
      state_pointers.push_back(state.back()->as<float>());
    }
    segment.state = state_pointers;
    if (given.encodes) segment.payload = {payload.bytes(), bound};
    if (given.delivers) segment.raw_out = out.as<std::byte>();
    if (given.in_place) segment.raw_out = raw[*given.in_place]->as<std::byte>() + given.begin();
    Found found;
    arena_->rewind();
    try {
      if (runs == nullptr) {
        ElementCodec::launch(*codec, segment, *arena_, stream_, *common_, report);
      } else {
        runs->launch(segment, *arena_, stream_, *common_, report);
      }
    } catch (const CorruptPayload& error) {
      found.refused = error.what();
    }
    CASYNC_CUDA(driver, cuStreamSynchronize, stream_);
    found.residual = residual.copy<float>();
    for (const auto& values : state) found.state.push_back(values->copy<float>());
    found.out = out.copy<std::byte>();
    if (given.in_place) {
      const Bytes all = raw[*given.in_place]->copy<std::byte>();
      found.out.assign(all.begin() + given.range.begin * std::ssize(all) / given.shape.numel(),
                       all.begin() + given.range.end * std::ssize(all) / given.shape.numel());
    }
    if (found.refused.empty() && report->refused >= 0) found.refused = std::to_string(report->refused);
    found.nonfinite = report->nonfinite != 0;
    found.payload.assign(payload.bytes(), payload.bytes() + report->payload_bytes);
    return found;
  }

  void expect_same(const Given& given) {
    SCOPED_TRACE(given.codec + " of " + std::to_string(given.shape.rows) + " x " + std::to_string(given.shape.cols) +
                 ", [" + std::to_string(given.range.begin) + ", " + std::to_string(given.range.end) + ")");
    const Found cpu = on_cpu(given);
    const Found device = on_device(given);
    EXPECT_EQ(cpu.payload, device.payload);
    EXPECT_TRUE(same_bits(cpu.residual, device.residual));
    EXPECT_TRUE(std::ranges::equal(cpu.state, device.state, same_bits));
    if (given.delivers || given.in_place) {
      EXPECT_TRUE(same_bits(values(cpu.out, given.dtype), values(device.out, given.dtype)));
    }
    EXPECT_EQ(cpu.nonfinite, device.nonfinite);
    EXPECT_EQ(cpu.refused, "");
    EXPECT_EQ(device.refused, "");
  }

  gpu::Device device_;
  gpu::Device::Current current_;
  gpu::Stream stream_;
  std::unique_ptr<CommonKernels> common_;
  std::unique_ptr<gpu::Arena> arena_;
};

const std::vector<std::string> kCodecs{"onebit",
                                       "terngrad(bits=2)",
                                       "terngrad(bits=8)",
                                       "graddrop(drop=0.9)",
                                       "threelc",
                                       "tbq",
                                       "dgc(ratio=0.01)",
                                       "adacomp(bin=50)",
                                       "none",
                                       "fp16",
                                       "bf16"};

/// Whole gradients, and of long ones a part.
std::vector<std::pair<Shape, Range>> places(const Codec& codec) {
  std::vector<std::pair<Shape, Range>> found;
  for (const Shape shape : {Shape{1, 1}, Shape{17, 1}, Shape{5000, 1}, Shape{40, 257}, Shape{3, 9000}}) {
    found.push_back({shape, {0, shape.numel()}});
    const Range part{codec.cut(shape, shape.numel() / 3), codec.cut(shape, shape.numel() * 2 / 3)};
    if (part.size() > 0) found.push_back({shape, part});
  }
  return found;
}

/// The range of another rank's gradient, encoded.
Bytes payload_of(const std::string& codec, Shape shape, Range range, std::uint64_t seed, DType dtype = DType::float32) {
  Call call(make_codec(codec), shape, range, dtype);
  call.raw(elements(gradient(shape.numel(), seed), dtype)).encode().run();
  return call.payload;
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

TEST_F(OnDevice, DoesBothRoundsAsTheCpu) {
  const std::string codec = "powersgd(rank=3)";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : {DType::float32, DType::float16}) {
    for (const Shape shape : {Shape{40, 57}, Shape{3, 200}, Shape{1, 1}}) {
      for (const bool finite : {true, false}) {
        Given given{.codec = codec, .shape = shape, .range = {0, shape.numel()}, .mid = 0.5F, .dtype = dtype};
        const std::vector<float> of_this = gradient(shape.numel(), 1);
        for (std::uint8_t round = 0; round < 2; ++round) {
          given.round = round;
          given.raw = {of_this};
          given.encoded = {};
          given.residual = gradient(shape.numel(), 2);
          given.encodes = true;
          given.delivers = false;
          expect_same(given);
          Bytes mine = on_cpu(given).payload;
          if (!finite && round == 1) std::memcpy(mine.data(), &nan, sizeof nan);
          given.raw = {};
          given.residual.reset();
          for (const std::size_t ranks : {1U, 3U, 33U}) {
            given.encoded.assign(ranks, mine);
            expect_same(given);
            given.encodes = false;
            given.delivers = true;
            if (round == 1) expect_same(given);
            given.post = 3.0F;
            if (round == 1) expect_same(given);
            given.post = 1.0F;
            given.encodes = true;
            given.delivers = false;
          }
          given.previous = on_cpu(given).payload;
          if (!finite) std::memcpy(given.previous.data(), &nan, sizeof nan);
        }
      }
    }
  }
}

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
      runs.settle(segment, *arena_, stream_, *common_, report);
      CASYNC_CUDA(driver, cuStreamSynchronize, stream_);
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
      runs.settle(segment, *arena_, stream_, *common_, report);
      CASYNC_CUDA(driver, cuStreamSynchronize, stream_);
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
      if (!carried(*make_codec(codec), dtype, ReduceOp::sum)) continue;
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
  const auto carries = [&](const char* codec, DType dtype = DType::float32, ReduceOp op = ReduceOp::sum) {
    return carried(*make_codec(codec), dtype, op);
  };
  EXPECT_TRUE(carries("onebit"));
  EXPECT_TRUE(carries("onebit", DType::float32, ReduceOp::average));
  EXPECT_TRUE(carries("onebit", DType::float16));
  EXPECT_FALSE(carries("onebit", DType::int32));
  EXPECT_FALSE(carries("onebit", DType::float32, ReduceOp::adasum));
  EXPECT_TRUE(carries("none", DType::bfloat16));
  EXPECT_TRUE(carries("fp16", DType::float64));
  EXPECT_FALSE(carries("fp16", DType::int32));
  EXPECT_FALSE(carries("fp16", DType::float32, ReduceOp::adasum));
  EXPECT_FALSE(carries("none", DType::int32));
  EXPECT_FALSE(carries("none", DType::float64)) << "the CPU adds them in float64";
  EXPECT_FALSE(carries("none", DType::float32, ReduceOp::max));
  EXPECT_TRUE(carries("powersgd"));
  EXPECT_FALSE(carries("test_tworound")) << "no device code";
}

}  // namespace
}  // namespace casync::test
