#include "codec/cuda/element_codec.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"
#include "codec/cpu/mean.hpp"

namespace casync::codec::cuda {
namespace {

namespace gpu = casync::cuda;

/// What payloads are elements of.
std::optional<DType> wire_of(const CodecInfo& info, DType dtype) { return info.identity ? dtype : info.cast; }

/// One segment on its way to the stream, as BlockCodec takes a block.
class Launch {
 public:
  Launch(const CodecInfo& info, const DeviceJob& job, const gpu::Driver& driver, gpu::Arena& arena,
         const CommonKernels& common)
      : segment_(*job.segment),
        wire_(*wire_of(info, segment_.dtype)),
        identity_(info.identity),
        by_lane_(job.by_lane),
        arena_(arena),
        common_(common),
        report_(job.report),
        launches_(driver) {}

  Launches prepare() {
    fetch_payloads();
    const float* values = accumulate();
    if (encodes())
      encode(values);
    else
      deliver(values, segment_.mid);
    return std::move(launches_);
  }

 private:
  std::int64_t n() const { return segment_.range.size(); }
  bool encodes() const { return !segment_.payload.empty(); }
  bool single() const { return segment_.dtype == DType::float32; }
  /// Of float32.
  float* out() const { return static_cast<float*>(segment_.raw_out); }
  float* take() { return reinterpret_cast<float*>(arena_.take(static_cast<std::size_t>(n()) * sizeof(float))); }

  /// Whether float32 values are the result as they are, but for `factor`.
  bool is_direct(float factor) const {
    return single() && segment_.raw_out != nullptr && factor == 1.0F && segment_.post == 1.0F;
  }
  /// Whether a source is to be overwritten; only the first launch may do that, which reads it.
  bool is_in_place() const {
    return std::ranges::any_of(segment_.sources, [&](const Source& source) { return source.data == out(); });
  }

  /// Brings what is encoded to the device.
  void fetch_payloads() {
    std::vector<CopyBatch> copies;
    for (const Source& source : segment_.sources) {
      const auto* const from = static_cast<const std::byte*>(source.data);
      std::byte* const to = source.raw || by_lane_ ? nullptr : arena_.take(source.bytes);
      payloads_.push_back(to == nullptr ? from : to);
      if (to != nullptr) copies.push_back({.from = from, .to = to, .bytes = static_cast<std::int64_t>(source.bytes)});
    }
    common_.carry(copies, true, launches_);
  }

  void encode(const float* values) {
    const std::int64_t bytes = n() * static_cast<std::int64_t>(size_of(wire_));
    std::byte* const payload = by_lane_ ? segment_.payload.data() : arena_.take(static_cast<std::size_t>(bytes));
    store(wire_, values, segment_.mid, 1.0F, payload);
    if (!by_lane_) common_.carry({{.from = payload, .to = segment_.payload.data(), .bytes = bytes}}, false, launches_);
    report_->payload_bytes = bytes;  // known at once
    if (segment_.raw_out == nullptr) return;
    // Every rank decodes these very bytes.
    sum_ = is_direct(1.0F) ? out() : take();
    const RawSource written{.payload = payload};
    merge({&written, 1});
    deliver(sum_, 1.0F);
  }

  /// Elements of the gradient are read as a payload's, where they are of that dtype.
  bool is_read_as_payload(const Source& source) const {
    return !source.raw || (segment_.dtype == wire_ && segment_.pre == 1.0F);
  }

  /// The sum over the sources, in order. Sources that the kernel for sums takes are collected for one launch.
  const float* accumulate() {
    const auto& sources = segment_.sources;
    const bool direct = !encodes() && is_direct(segment_.mid);
    if (single() && sources.size() == 1 && sources[0].raw && segment_.pre == 1.0F && !direct)
      return static_cast<const float*>(sources[0].data);
    sum_ = direct && !(sources.size() > RawMerge::kMost && is_in_place()) ? out() : take();
    std::vector<RawSource> next;
    bool begun = false;
    const auto merge_next = [&] {
      if (next.empty()) return;
      if (begun) next.insert(next.begin(), {.raw = sum_});
      merge(next);
      next.clear();
      begun = true;
    };
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const Source& source = sources[i];
      if (is_read_as_payload(source)) {
        next.push_back({.payload = payloads_[i]});
      } else if (single()) {
        next.push_back({.raw = static_cast<const float*>(source.data), .factor = segment_.pre});
      } else {
        merge_next();
        common_.load(segment_.dtype, {{source.data, segment_.pre, begun ? sum_ : nullptr, sum_, n(), nonfinite()}},
                     launches_);
        begun = true;
      }
    }
    merge_next();
    return sum_;
  }

  void merge(std::span<const RawSource> sources) {
    common_.merge(wire_, sources, {.out = sum_, .n = n(), .nonfinite = nonfinite()}, launches_);
  }

  void deliver(const float* values, float factor) {
    if (!(values == out() && is_direct(factor))) store(segment_.dtype, values, factor, segment_.post, segment_.raw_out);
  }

  /// A mean of what is not compressed is divided (mean.hpp).
  void store(DType dtype, const float* values, float factor, float post, void* to) {
    const std::int64_t divisor = identity_ ? divisor_of(factor) : 0;
    if (divisor > 1) {
      common_.divide(dtype, {{values, static_cast<float>(divisor), post, to, n(), nonfinite()}}, launches_);
    } else {
      common_.store(dtype, {{values, factor, post, to, n(), nonfinite()}}, launches_);
    }
  }

  std::int32_t* nonfinite() const { return &report_->nonfinite; }

  const Segment& segment_;
  DType wire_;
  bool identity_;
  bool by_lane_;
  gpu::Arena& arena_;
  const CommonKernels& common_;
  SegmentReport* report_;
  Launches launches_;
  std::vector<const std::byte*> payloads_;  // where kernels read the sources
  float* sum_ = nullptr;
};

}  // namespace

bool ElementCodec::supports(const Codec& codec, DType dtype, ReduceOp op) {
  const std::optional<DType> wire = wire_of(codec.info(), dtype);
  const bool sums = op == ReduceOp::sum || op == ReduceOp::average;
  return wire && sums && is_floating(dtype) && *wire != DType::float64;
}

void ElementCodec::check(const Codec& codec, const Segment& segment) {
  check_segment(codec, segment);
  CASYNC_CHECK(supports(codec, segment.dtype, segment.op) && segment.sources.size() > 0, codec.info().spec,
               ": no device does this");
}

Launches ElementCodec::prepare(const Codec& codec, const DeviceJob& job, const gpu::Driver& driver, gpu::Arena& arena,
                               const CommonKernels& common) {
  return Launch(codec.info(), job, driver, arena, common).prepare();
}

}  // namespace casync::codec::cuda
