// A codec's segments on a GPU, beside a copy of the gradient within the device.
//
//   gpu_codecs CODEC COMMON CODE REPEATS ELEMENTS TENSORS...
//
// COMMON and CODE: files with the device code that all codecs have, and that of CODEC. So many ELEMENTS are one tensor,
// or as many TENSORS of odd sizes, launched together. For each of TENSORS a line of JSON is printed as it ends: medians
// of REPEATS, in seconds, each from the first call of the host until the device is through, payloads in pinned memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "codec/cuda/device_codec.hpp"
#include "cuda/device.hpp"

namespace {

namespace gpu = casync::cuda;
using namespace casync;
using codec::cuda::CommonKernels;
using codec::cuda::DeviceCodec;
using codec::cuda::DeviceJob;
using codec::cuda::Launches;
using codec::cuda::SegmentReport;

std::string content(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InvalidArgument(std::string("there is no file ") + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Until the program ends.
std::byte* on_device(const gpu::Driver& driver, std::size_t bytes) {
  gpu::DevicePointer memory = 0;
  CASYNC_CUDA(driver, cuMemAlloc_v2, &memory, std::max<std::size_t>(bytes, 1));
  return reinterpret_cast<std::byte*>(memory);
}
std::byte* pinned(const gpu::Driver& driver, std::size_t bytes) {
  void* memory = nullptr;
  CASYNC_CUDA(driver, cuMemHostAlloc, &memory, std::max<std::size_t>(bytes, 1), gpu::kPortable);
  return static_cast<std::byte*>(memory);
}
gpu::DevicePointer address(const std::byte* of) { return reinterpret_cast<gpu::DevicePointer>(of); }

class Bench {
 public:
  Bench(const std::string& spec, const char* common, const char* code, int repeats, std::int64_t elements)
      : device_(gpu::driver(), 0),
        current_(device_),
        stream_(device_.make_stream()),
        common_(device_, content(common)),
        codec_(make_codec(spec)),
        runs_(device_, codec_, content(code)),
        arena_(device_, stream_),
        repeats_(repeats),
        elements_(elements),
        gradient_(on_device(driver(), bytes())),
        residual_(on_device(driver(), bytes())),
        sum_(on_device(driver(), bytes())),
        copy_(on_device(driver(), bytes())) {
    std::byte* const values = pinned(driver(), bytes());
    for (std::int64_t i = 0; i < elements; ++i) {  // of all magnitudes
      const auto random = static_cast<std::uint32_t>(i + 1) * 2654435761U;
      const float wave = static_cast<float>(random >> 8) * 0x1p-23F - 1.0F;
      const float value = wave * wave * wave;
      std::memcpy(values + 4 * i, &value, sizeof value);
    }
    for (std::byte* const to : {gradient_, sum_})
      CASYNC_CUDA(driver(), cuMemcpyHtoDAsync_v2, address(to), values, bytes(), stream_);
    CASYNC_CUDA(driver(), cuMemsetD8Async, address(residual_), 0, bytes(), stream_);
    synchronize();
    driver().cuMemFreeHost(values);
  }

  void measure(std::int64_t tensors) {
    divide(tensors);
    const double copy = median(
        [&] { CASYNC_CUDA(driver(), cuMemcpyDtoDAsync_v2, address(copy_), address(gradient_), bytes(), stream_); });
    const double encode = median([&] { compute(true); });
    std::size_t payload = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].payload_bytes = static_cast<std::size_t>(reports_[i].payload_bytes);
      payload += tensors_[i].payload_bytes;
    }
    const double merge = median([&] { compute(false); });
    for (std::size_t i = 0; i < tensors_.size(); ++i)
      CASYNC_CHECK(reports_[i].refused < 0 && reports_[i].overflow == 0, "the device made a payload that it refuses");
    std::printf(
        "{\"tensors\": %ld, \"bytes\": %zu, \"payload_bytes\": %zu, \"copy_s\": %.9g, \"encode_s\": %.9g, "
        "\"merge_s\": %.9g}\n",
        static_cast<long>(tensors), bytes(), payload, copy, encode, merge);
    std::fflush(stdout);
  }

 private:
  struct Tensor {
    Range range;
    std::byte* payload;  // pinned
    std::size_t bound;
    std::size_t payload_bytes = 0;
  };

  const gpu::Driver& driver() const { return device_.driver(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements_) * sizeof(float); }
  void synchronize() const { CASYNC_CUDA(driver(), cuStreamSynchronize, stream_); }

  /// Each second tensor is half as long as its neighbour, and none is a round number of elements.
  void divide(std::int64_t count) {
    tensors_.clear();
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t rest = count - i;
      const std::int64_t size =
          rest == 1 ? elements_ - begin : (elements_ - begin) / rest * (i % 2 == 0 ? 4 : 2) / 3 | 1;
      const Range range{begin, begin + size};
      const std::size_t bound = codec_->bound({size, 1}, DType::float32, {0, size}, 0);
      tensors_.push_back({range, pinned(driver(), bound), bound});
      begin += size;
    }
    reports_ = reinterpret_cast<SegmentReport*>(pinned(driver(), tensors_.size() * sizeof(SegmentReport)));
  }

  /// Encodes all tensors, or adds their payloads to a sum.
  void compute(bool encodes) {
    std::vector<Segment> segments(tensors_.size());
    std::vector<std::vector<Source>> sources(tensors_.size());
    std::vector<DeviceJob> jobs;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i];
      const std::int64_t n = tensor.range.size();
      const std::size_t at = static_cast<std::size_t>(tensor.range.begin) * sizeof(float);
      const std::size_t raw = static_cast<std::size_t>(n) * sizeof(float);
      Segment& segment = segments[i];
      segment.shape = {n, 1};
      segment.range = {0, n};
      segment.name_hash = i + 1;
      if (encodes) {
        sources[i] = {{gradient_ + at, raw, true}};
        segment.payload = {tensor.payload, tensor.bound};
        if (codec_->info().feedback == Feedback::wrapper) segment.residual = reinterpret_cast<float*>(residual_ + at);
      } else {
        sources[i] = {{sum_ + at, raw, true}, {tensor.payload, tensor.payload_bytes, false}};
        segment.raw_out = sum_ + at;
      }
      segment.sources = sources[i];
      reports_[i] = {};
      jobs.push_back({&segment, &reports_[i]});
    }
    for (const auto& group : runs_.groups(jobs)) {
      arena_.rewind();
      Launches launches = runs_.prepare(group, arena_, stream_, common_);
      launches.run(arguments(launches.argument_bytes()), arena_, stream_);
    }
    synchronize();
    used_ = 0;
  }

  /// Of this run, in pinned memory that the next one takes again.
  std::byte* arguments(std::size_t size) {
    if (used_ == arguments_.size()) arguments_.emplace_back(pinned(driver(), size), size);
    if (arguments_[used_].second < size) arguments_[used_] = {pinned(driver(), size), size};
    return arguments_[used_++].first;
  }

  /// Of one call, after one that warms up.
  double median(const std::function<void()>& work) {
    std::vector<double> seconds;
    for (int i = 0; i <= repeats_; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      synchronize();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    seconds.erase(seconds.begin());
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  }

  gpu::Device device_;
  gpu::Device::Current current_;
  gpu::Stream stream_;
  CommonKernels common_;
  std::shared_ptr<const Codec> codec_;
  DeviceCodec runs_;
  gpu::Arena arena_;
  int repeats_;
  std::int64_t elements_;
  std::byte *gradient_, *residual_, *sum_, *copy_;
  std::vector<Tensor> tensors_;
  SegmentReport* reports_ = nullptr;
  std::vector<std::pair<std::byte*, std::size_t>> arguments_;
  std::size_t used_ = 0;
};

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count < 7) throw InvalidArgument("gpu_codecs CODEC COMMON CODE REPEATS ELEMENTS TENSORS...");
    Bench bench(arguments[1], arguments[2], arguments[3], std::atoi(arguments[4]), std::atoll(arguments[5]));
    for (int i = 6; i < count; ++i) bench.measure(std::atoll(arguments[i]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
