#include "codec/cpu/block_codec.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "casync/error.hpp"
#include "codec/cpu/adasum.hpp"

namespace casync::codec {
namespace {

/// From this size on results bypass the caches on their way to memory: nobody reads so much again before it is evicted.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

/// What a thread keeps between calls, so that none of them allocates.
struct Scratch {
  alignas(64) float accumulated[BlockCodec::kLongestBlock];
  alignas(64) float decoded[BlockCodec::kLongestBlock];
  std::vector<MergeSource> cursors;  ///< the sources of the segment, at the current block
};

Scratch& scratch() {
  static thread_local std::unique_ptr<Scratch> own;
  if (own == nullptr) own = std::make_unique<Scratch>();
  return *own;
}

}  // namespace

void throw_corrupt(const CodecInfo& info, const Segment& segment, std::size_t found, std::size_t expected) {
  throw CorruptPayload(detail::concat(info.spec, ": a payload of ", found, " bytes where ", expected,
                                      " were expected, for elements [", segment.range.begin, ", ", segment.range.end,
                                      ") of a ", segment.shape.rows, " x ", segment.shape.cols, " gradient, round ",
                                      int{segment.round}));
}

void check_segment(const Codec& codec, const Segment& segment) {
  const CodecInfo& info = codec.info();
  const Range& range = segment.range;
  CASYNC_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= segment.shape.numel(), info.spec, " over [",
               range.begin, ", ", range.end, ")");
  CASYNC_CHECK(segment.round < info.rounds.size(), info.spec, " has no round ", int{segment.round});
  CASYNC_CHECK(segment.residual == nullptr || info.feedback == Feedback::wrapper, info.spec, " takes no residual");
  CASYNC_CHECK(segment.raw_out != nullptr || !segment.payload.empty() || range.size() == 0, info.spec,
               " has no output");
  const std::size_t bound = codec.bound(segment.shape, segment.dtype, range, segment.round);
  CASYNC_CHECK(segment.payload.empty() || segment.payload.size() >= bound, info.spec, ": room for ",
               segment.payload.size(), " bytes, ", bound, " needed");
  for (const Source& source : segment.sources) {
    const std::size_t raw_bytes = static_cast<std::size_t>(range.size()) * size_of(segment.dtype);
    if (source.raw)
      CASYNC_CHECK(source.bytes == raw_bytes, info.spec, ": raw source of ", source.bytes, " bytes, expected ",
                   raw_bytes);
    else if (info.fixed_size ? source.bytes != bound : source.bytes > bound)
      throw_corrupt(info, segment, source.bytes, bound);
  }
}

/// The state of one segment on its way through the blocks; the three steps of a block are its functions.
class BlockCodec::Pass {
 public:
  Pass(const BlockCodec& codec, Segment& segment, Scratch& own)
      : codec_(codec), segment_(segment), own_(own), dtype_(static_cast<std::size_t>(segment.dtype)) {
    bool in_place = false;
    for (const Source& source : segment.sources) in_place |= source.raw && source.data == segment.raw_out;
    rewind();
    const std::size_t out_bytes = static_cast<std::size_t>(segment.range.size()) * size_of(segment.dtype);
    stream_ = segment.raw_out != nullptr && out_bytes >= kStreamBytes && !in_place;
    stream_directly_ = stream_ && reinterpret_cast<std::uintptr_t>(segment.raw_out) % 64 == 0 &&
                       codec.fills_cache_lines(segment.shape);
    stream_payload_ = segment.raw_out == nullptr && segment.payload.size() >= kStreamBytes;
  }

  void run() {
    CASYNC_CHECK(!segment_.sources.empty() || segment_.range.size() == 0, codec_.info().spec, ": no sources");
    if (segment_.op == ReduceOp::adasum)
      run_adasum();
    else
      run_sum();
    for (std::size_t i = 0; i < segment_.sources.size(); ++i) {
      const auto left = static_cast<std::size_t>(own_.cursors[i].payload_end - own_.cursors[i].payload);
      if (left != 0)
        throw_corrupt(codec_.info(), segment_, segment_.sources[i].bytes, segment_.sources[i].bytes - left);
    }
    if (stream_ || stream_payload_) kernels_.fence();
  }

 private:
  bool encodes() const { return !segment_.payload.empty(); }
  bool single() const { return segment_.dtype == DType::float32; }
  std::int64_t offset(const BlockJob& job) const {
    return (job.range.begin - segment_.range.begin) * static_cast<std::int64_t>(size_of(segment_.dtype));
  }
  const void* raw_source(const BlockJob& job, std::size_t i) const {
    return static_cast<const std::byte*>(segment_.sources[i].data) + offset(job);
  }
  void* raw_out(const BlockJob& job) const { return static_cast<std::byte*>(segment_.raw_out) + offset(job); }

  /// Where a float32 result that needs no factor goes: straight to raw_out, unless it is so large that it should bypass
  /// the caches and its units do not begin on cache lines; then step 3 does that.
  float* destination(const BlockJob& job, bool final, float* otherwise) const {
    const bool direct = final && segment_.raw_out != nullptr && single() && segment_.post == 1.0F;
    return direct && stream_ == stream_directly_ ? static_cast<float*>(raw_out(job)) : otherwise;
  }

  /// The codec's merge to `out`, past the caches if that is raw_out and large.
  void merge(const BlockJob& job, std::span<MergeSource> sources, float* out) {
    segment_.nonfinite |= codec_.merge(job, sources, out, stream_directly_ && out == raw_out(job));
  }

  void run_sum() {
    for (std::int64_t begin = segment_.range.begin; begin < segment_.range.end;) {
      const std::int64_t limit = std::min(begin + codec_.block(), segment_.range.end);
      const std::int64_t end = codec_.cut(segment_.shape, limit);
      CASYNC_CHECK(end > begin, codec_.info().spec, ": ", limit, " is not on a boundary");
      const BlockJob job{segment_, {begin, end}, stream_payload_};
      finish(job, accumulate(job));
      begin = end;
    }
  }

  void run_adasum() {
    const auto read = [&](const Range& block, double* values) {
      if (block.begin == segment_.range.begin) rewind();
      read_apart({segment_, block, stream_payload_}, values);
    };
    const auto write = [&](const Range& block, const double* values) {
      std::copy_n(values, block.size(), own_.accumulated);
      finish({segment_, block, stream_payload_}, own_.accumulated);
    };
    Adasum::run(segment_.sources.size(), segment_.range, read, write);
  }

  /// All sources from the segment's first element on.
  void rewind() {
    own_.cursors.clear();
    for (const Source& source : segment_.sources) {
      const auto* const bytes = static_cast<const std::byte*>(source.data);
      if (source.raw)
        own_.cursors.push_back({static_cast<const float*>(source.data), segment_.pre, nullptr, nullptr});
      else
        own_.cursors.push_back({nullptr, 1.0F, bytes, bytes + source.bytes});
    }
  }

  /// The values of a block of each source, one source after the other.
  void read_apart(const BlockJob& job, double* values) {
    for (std::size_t i = 0; i < segment_.sources.size(); ++i) {
      if (segment_.sources[i].raw)
        kernels_.load_raw[dtype_](raw_source(job, i), segment_.pre, nullptr, own_.decoded, job.range.size());
      else
        codec_.merge(job, {&own_.cursors[i], 1}, own_.decoded, false);
      values = std::copy_n(own_.decoded, job.range.size(), values);
    }
  }

  /// Steps 2 and 3 of a block.
  void finish(const BlockJob& job, const float* accumulated) {
    const float* const result = encodes() ? encode(job, accumulated) : accumulated;
    if (segment_.raw_out != nullptr) deliver(job, result, encodes() ? 1.0F : segment_.mid);
  }

  /// Step 1: the sum over the sources, in order.
  const float* accumulate(const BlockJob& job) {
    float* const out = destination(job, !encodes() && segment_.mid == 1.0F, own_.accumulated);
    if (!single()) return accumulate_converted(job);
    const bool as_is = segment_.sources.size() == 1 && segment_.sources[0].raw && segment_.pre == 1.0F;
    const auto* const raw = static_cast<const float*>(raw_source(job, 0));
    if (as_is && out == own_.accumulated) return raw;
    merge(job, own_.cursors, out);
    return out;
  }

  /// The same where raw sources are of another dtype: one by one, as float32.
  const float* accumulate_converted(const BlockJob& job) {
    const float* accumulated = nullptr;
    for (std::size_t i = 0; i < segment_.sources.size(); ++i) {
      if (segment_.sources[i].raw) {
        segment_.nonfinite |= kernels_.load_raw[dtype_](raw_source(job, i), segment_.pre, accumulated, own_.accumulated,
                                                        job.range.size());
      } else {
        MergeSource pair[2]{{accumulated, 1.0F, nullptr, nullptr}, own_.cursors[i]};
        const auto sources = std::span(pair).last(accumulated != nullptr ? 2 : 1);
        merge(job, sources, own_.accumulated);
        own_.cursors[i] = pair[1];
      }
      accumulated = own_.accumulated;
    }
    return accumulated;
  }

  /// Step 2: encode, and take as the result what every receiver will decode.
  const float* encode(const BlockJob& job, const float* accumulated) {
    std::byte* const payload = segment_.payload.data() + segment_.payload_bytes;
    float* const residual =
        segment_.residual == nullptr ? nullptr : segment_.residual + (job.range.begin - segment_.range.begin);
    const Encoded encoded = codec_.encode(job, accumulated, residual, payload);
    segment_.payload_bytes += encoded.bytes;
    segment_.nonfinite |= encoded.nonfinite;
    if (segment_.raw_out == nullptr) return nullptr;
    float* const out = destination(job, true, own_.decoded);
    MergeSource written{nullptr, 1.0F, payload, payload + encoded.bytes};
    merge(job, {&written, 1}, out);
    return out;
  }

  /// Step 3: the raw result, unless it is there already. (A lone source may lie there without its factor.)
  void deliver(const BlockJob& job, const float* result, float factor) {
    if (result == raw_out(job) && factor == 1.0F && segment_.post == 1.0F) return;
    segment_.nonfinite |=
        codec_.store(result, segment_.dtype, factor, segment_.post, raw_out(job), job.range.size(), stream_);
  }

  const BlockCodec& codec_;
  const Kernels& kernels_ = kernels();
  Segment& segment_;
  Scratch& own_;
  std::size_t dtype_;
  bool stream_ = false;           ///< raw_out bypasses the caches
  bool stream_directly_ = false;  ///< and merges may write there
  bool stream_payload_ = false;
};

bool BlockCodec::store(const float* values, DType dtype, float factor, float post, void* out, std::int64_t n,
                       bool stream) const {
  return kernels().store_raw[static_cast<std::size_t>(dtype)](values, factor, post, out, n, stream);
}

void BlockCodec::run(std::span<Segment> segments) const {
  for (Segment& segment : segments) {
    check_segment(*this, segment);
    segment.payload_bytes = 0;
    segment.nonfinite = false;
    if (run_otherwise(segment)) continue;
    const bool sums = segment.op == ReduceOp::sum || (segment.op == ReduceOp::adasum && takes_adasum(info()));
    CASYNC_CHECK(sums && is_floating(segment.dtype), info().spec, " cannot do ", name_of(segment.op), " of ",
                 name_of(segment.dtype));
    Pass(*this, segment, scratch()).run();
  }
}

}  // namespace casync::codec
