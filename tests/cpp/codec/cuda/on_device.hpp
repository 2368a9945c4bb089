#pragma once

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
#include "codec/cuda/device_codec.hpp"
#include "codec/cuda/element_codec.hpp"
#include "codec/support.hpp"
#include "standin/standin.hpp"

/// Segments on the stand-in's device beside Codec::run, of which tests compare payloads, residuals, results and
/// reports.
namespace casync::test {

namespace gpu = casync::cuda;
using codec::cuda::CommonKernels;
using codec::cuda::DeviceCodec;
using codec::cuda::DeviceJob;
using codec::cuda::ElementCodec;
using codec::cuda::Launches;
using codec::cuda::SegmentReport;

inline std::string kernels_of(const std::string& codec) { return KERNELS + codec.substr(0, codec.find('(')) + ".so"; }

inline bool supported(const Codec& codec, DType dtype, ReduceOp op) {
  return ElementCodec::supports(codec, dtype, op) || DeviceCodec::supports(codec, dtype, op);
}

/// A state as it is after some steps.
inline State state_of(const Codec& codec, Shape shape) {
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
    EXPECT_TRUE(supported(codec, segment.dtype, segment.op));
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

  /// A segment on the device, and what it needs there.
  class There {
   public:
    There(const gpu::Driver& driver, const Codec& codec, const Given& given)
        : given_(given),
          residual_(driver, given.residual ? given.residual->data() : nullptr, sizeof(float) * residuals(given)),
          out_(driver, Bytes(given.bytes(), std::byte{77}).data(), given.bytes()),
          bound_(codec.bound(given.shape, given.dtype, given.range, given.round)),
          payload_(driver, bound_),
          report_memory_(driver, sizeof(SegmentReport)),
          previous_(driver, given.previous.size()),
          segment_(segment_of(codec, given)) {
      for (const auto& whole : given.raw) {
        const Bytes content = elements(whole, given.dtype);
        raw_.push_back(std::make_unique<Memory>(driver, content.data(), content.size()));
      }
      for (const Bytes& bytes : given.encoded) {
        encoded_.push_back(std::make_unique<Pinned>(driver, bytes.size()));
        std::ranges::copy(bytes, encoded_.back()->bytes());
      }
      sources_ = sources_of(
          given, [&](std::size_t i) { return raw_[i]->as<std::byte>(); },
          [&](std::size_t i) { return encoded_[i]->bytes(); });
      segment_.sources = sources_;
      if (given.residual) segment_.residual = residual_.as<float>() + given.range.begin;
      if (given.encodes) segment_.payload = {payload_.bytes(), bound_};
      if (given.delivers) segment_.raw_out = out_.as<std::byte>();
      if (given.in_place) segment_.raw_out = raw_[*given.in_place]->as<std::byte>() + given.begin();
      std::ranges::copy(given.previous, previous_.bytes());
      segment_.previous = {previous_.bytes(), given.previous.size()};
      for (const auto& values : state_of(codec, given.shape).values) {
        state_.push_back(std::make_unique<Memory>(driver, values.data(), values.size() * sizeof(float)));
        state_pointers_.push_back(state_.back()->as<float>());
      }
      segment_.state = state_pointers_;
      *report() = {};
    }
    There(const There&) = delete;
    There& operator=(const There&) = delete;

    const Segment& segment() const { return segment_; }
    DeviceJob job() const { return {&segment_, report()}; }
    /// After the stream.
    Found found() const {
      Found found;
      found.residual = residual_.copy<float>();
      for (const auto& values : state_) found.state.push_back(values->copy<float>());
      found.out = out_.copy<std::byte>();
      if (given_.in_place) {
        const Bytes all = raw_[*given_.in_place]->copy<std::byte>();
        found.out.assign(all.begin() + given_.range.begin * std::ssize(all) / given_.shape.numel(),
                         all.begin() + given_.range.end * std::ssize(all) / given_.shape.numel());
      }
      if (report()->refused >= 0) found.refused = std::to_string(report()->refused);
      found.nonfinite = report()->nonfinite != 0;
      found.payload.assign(payload_.bytes(), payload_.bytes() + report()->payload_bytes);
      return found;
    }

   private:
    static std::size_t residuals(const Given& given) { return given.residual ? given.residual->size() : 0; }
    SegmentReport* report() const { return reinterpret_cast<SegmentReport*>(report_memory_.bytes()); }

    const Given& given_;
    std::vector<std::unique_ptr<Memory>> raw_;
    std::vector<std::unique_ptr<Pinned>> encoded_;
    Memory residual_, out_;
    std::size_t bound_;
    Pinned payload_, report_memory_, previous_;
    std::vector<std::unique_ptr<Memory>> state_;
    std::vector<float*> state_pointers_;
    std::vector<Source> sources_;
    Segment segment_;
  };

  void run(Launches launches) {
    const Pinned arguments(device_.driver(), launches.argument_bytes());
    launches.run(arguments.bytes(), *arena_, stream_);
    CASYNC_CUDA(device_.driver(), cuStreamSynchronize, stream_);
  }

  /// Launches what the jobs of one codec need, and waits for it. Returns in how many groups.
  std::size_t launch(DeviceCodec& codec, std::span<const DeviceJob> jobs) {
    const auto groups = codec.groups(jobs);
    for (const auto& group : groups) {
      arena_->rewind();
      run(codec.prepare(group, *arena_, stream_, *common_));
    }
    return groups.size();
  }

  Found on_device(const Given& given) {
    const auto codec = make_codec(given.codec);
    std::unique_ptr<DeviceCodec> runs;
    if (codec->device_code() != nullptr) runs = std::make_unique<DeviceCodec>(device_, codec, kernels_of(given.codec));
    const There there(device_.driver(), *codec, given);
    const DeviceJob job = there.job();
    std::string refused;
    try {
      if (runs != nullptr) {
        runs->check(there.segment());
        launch(*runs, {&job, 1});
      } else if (given.range.size() > 0) {
        ElementCodec::check(*codec, there.segment());
        arena_->rewind();
        run(ElementCodec::prepare(*codec, job, device_.driver(), *arena_, *common_));
      }
    } catch (const CorruptPayload& error) {
      refused = error.what();
    }
    Found found = there.found();
    if (!refused.empty()) found.refused = refused;
    return found;
  }

  void expect_same(const Given& given) {
    SCOPED_TRACE(given.codec + " of " + std::to_string(given.shape.rows) + " x " + std::to_string(given.shape.cols) +
                 ", [" + std::to_string(given.range.begin) + ", " + std::to_string(given.range.end) + ")");
    expect_same(given, on_device(given));
  }
  static void expect_same(const Given& given, const Found& device) {
    // The host adds payloads to what a codec of its own feedback has not sent (TaskGraph::host_only).
    const bool adds_to_pending = given.encodes && !given.raw.empty() && !given.encoded.empty();
    if (adds_to_pending && make_codec(given.codec)->info().feedback == Feedback::own) return;
    const Found cpu = on_cpu(given);
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

inline const std::vector<std::string> kCodecs{"onebit",
                                              "terngrad(bits=2)",
                                              "terngrad(bits=8)",
                                              "graddrop(drop=0.9)",
                                              "threelc",
                                              "ternary",
                                              "sparseloco",
                                              "tbq",
                                              "dgc(ratio=0.01)",
                                              "adacomp(bin=50)",
                                              "efsignsgd",
                                              "int8",
                                              "int4",
                                              "rotated",
                                              "lossless",
                                              "fp8",
                                              "qsgd(bits=2)",
                                              "minmax_uint8",
                                              "topk(ratio=0.02)",
                                              "none",
                                              "fp16",
                                              "bf16"};

/// The range of another rank's gradient, encoded.
inline Bytes payload_of(const std::string& codec, Shape shape, Range range, std::uint64_t seed,
                        DType dtype = DType::float32) {
  Call call(make_codec(codec), shape, range, dtype);
  call.raw(elements(gradient(shape.numel(), seed), dtype)).encode().run();
  return call.payload;
}

}  // namespace casync::test
