#include "executor/real/device_trial.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "codec/cuda/device_codec.hpp"
#include "common/clock.hpp"
#include "cuda/arena.hpp"
#include "cuda/device.hpp"
#include "executor/run/codec_trial.hpp"

namespace casync {
namespace {

using codec::cuda::SegmentReport;

/// Two sizes tell the fixed cost of a launch from the rest.
constexpr std::array<std::int64_t, 2> kElements{64 << 10, 512 << 10};
constexpr int kRepeats = 3;

/// As long as the device is current.
class Memory {
 public:
  enum class Kind { device, pinned };
  Memory(const cuda::Driver& driver, Kind kind, std::size_t bytes) : driver_(driver), kind_(kind) {
    if (kind == Kind::pinned) {
      CASYNC_CUDA(driver, cuMemHostAlloc, &pinned_, bytes, cuda::kPortable);
    } else {
      CASYNC_CUDA(driver, cuMemAlloc_v2, &there_, bytes);
    }
  }
  ~Memory() {
    if (kind_ == Kind::pinned) {
      driver_.cuMemFreeHost(pinned_);
    } else {
      driver_.cuMemFree_v2(there_);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  cuda::DevicePointer there() const { return there_; }
  template <typename T>
  T* as() const {
    return kind_ == Kind::pinned ? static_cast<T*>(pinned_) : reinterpret_cast<T*>(there_);
  }

 private:
  const cuda::Driver& driver_;
  Kind kind_;
  void* pinned_ = nullptr;
  cuda::DevicePointer there_ = 0;
};

/// A stream beside those of the framework, while the device is current.
class Timed {
 public:
  explicit Timed(const cuda::Device& device) : driver_(device.driver()), stream_(device.make_stream()) {
    arena_.emplace(device, stream_);
  }
  ~Timed() {
    arena_.reset();
    driver_.cuStreamDestroy_v2(stream_);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

  /// How long what `launch` gives to the stream takes, from the call until the host knows of the end.
  template <typename Launch>
  double seconds_of(const Launch& launch) {
    arena_->rewind();
    const Nanoseconds begun = steady_now();
    launch(stream_, *arena_);
    CASYNC_CUDA(driver_, cuStreamSynchronize, stream_);
    return static_cast<double>(steady_now() - begun) * 1e-9;
  }

 private:
  const cuda::Driver& driver_;
  cuda::Stream stream_;
  std::optional<cuda::Arena> arena_;
};

}  // namespace

DeviceTrial::DeviceTrial(int device, const std::string& common, const std::string& spec, const std::string& code)
    : codec_(make_codec(spec)) {
  const Shape largest{kElements.back(), 1};
  if (!codec::cuda::DeviceCodec::supports(*codec_, DType::float32, ReduceOp::sum)) return;
  if (codec_->info().rounds.size() > 1) return;
  const cuda::Device there(cuda::driver(), device);
  const cuda::Device::Current current(there);
  const codec::cuda::CommonKernels kernels(there, common);
  codec::cuda::DeviceCodec of(there, codec_, code);
  Timed timed(there);

  const std::size_t room = static_cast<std::size_t>(largest.numel()) * sizeof(float);
  const Memory values(there.driver(), Memory::Kind::pinned, room);
  const Memory payload(there.driver(), Memory::Kind::pinned,
                       codec_->bound(largest, DType::float32, {0, largest.numel()}, 0));
  const Memory report(there.driver(), Memory::Kind::pinned, sizeof(SegmentReport));
  const Memory gradient(there.driver(), Memory::Kind::device, room);
  const Memory residual(there.driver(), Memory::Kind::device, room);
  const std::vector<StateArray> arrays = codec_->state(largest);
  std::vector<std::unique_ptr<Memory>> state;
  std::vector<float*> state_pointers;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::size_t bytes = static_cast<std::size_t>(arrays[i].elements) * sizeof(float);
    const Memory begun(there.driver(), Memory::Kind::pinned, bytes);
    std::memset(begun.as<float>(), 0, bytes);
    codec_->start(largest, 0, i, {begun.as<float>(), static_cast<std::size_t>(arrays[i].elements)});
    state.push_back(std::make_unique<Memory>(there.driver(), Memory::Kind::device, bytes));
    state_pointers.push_back(state.back()->as<float>());
    timed.seconds_of([&](cuda::Stream stream, cuda::Arena&) {
      CASYNC_CUDA(there.driver(), cuMemcpyHtoDAsync_v2, state.back()->there(), begun.as<void>(), bytes, stream);
    });
  }
  fill_for_trial({values.as<float>(), static_cast<std::size_t>(largest.numel())});
  timed.seconds_of([&](cuda::Stream stream, cuda::Arena&) {
    CASYNC_CUDA(there.driver(), cuMemsetD8Async, residual.there(), 0, room, stream);
  });

  for (const std::int64_t numel : kElements) {
    const std::size_t bytes = static_cast<std::size_t>(numel) * sizeof(float);
    const Source raw{gradient.as<std::byte>(), bytes, true};
    Segment encode;
    encode.shape = {numel, 1};
    encode.range = {0, numel};
    encode.sources = {&raw, 1};
    encode.state = state_pointers;
    if (codec_->info().feedback == Feedback::wrapper) encode.residual = residual.as<float>();
    encode.payload = {payload.as<std::byte>(), codec_->bound(encode.shape, DType::float32, encode.range, 0)};
    const auto launch = [&](const Segment& segment) {
      return timed.seconds_of([&](cuda::Stream stream, cuda::Arena& arena) {
        *report.as<SegmentReport>() = {};
        const codec::cuda::DeviceJob job{.segment = &segment, .report = report.as<SegmentReport>()};
        of.prepare({&job, 1}, arena, stream, kernels).run(nullptr, arena, stream);
      });
    };
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {
      const double copy = timed.seconds_of([&](cuda::Stream stream, cuda::Arena&) {
        CASYNC_CUDA(there.driver(), cuMemcpyHtoDAsync_v2, gradient.there(), values.as<void>(), bytes, stream);
      });
      const double encoding = launch(encode);
      const Source encoded{payload.as<std::byte>(), static_cast<std::size_t>(report.as<SegmentReport>()->payload_bytes),
                           false};
      Segment decode = encode;
      decode.sources = {&encoded, 1};
      decode.residual = nullptr;
      decode.payload = {};
      decode.raw_out = gradient.as<float>();
      const double decoding = launch(decode);
      if (repeat == 0) continue;  // the range is new, and memory is asked for
      const auto size = static_cast<double>(bytes);
      results_.push_back({CostKind::copy, {}, size, copy});
      results_.push_back({CostKind::device_encode, codec_->info().spec, size, encoding});
      results_.push_back({CostKind::device_decode, codec_->info().spec, size, decoding});
    }
  }
}

}  // namespace casync
