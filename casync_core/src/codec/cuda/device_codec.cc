#include "codec/cuda/device_codec.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "casync/error.hpp"
#include "codec/cpu/block_codec.hpp"

namespace casync::codec::cuda {
namespace {

namespace gpu = casync::cuda;

template <typename T>
T* pointer_to(gpu::DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

/// One segment on its way to the stream.
class DeviceCodec::Launch {
 public:
  Launch(DeviceCodec& of, const Segment& segment, gpu::Arena& arena, gpu::Stream stream, const CommonKernels& common,
         SegmentReport* report)
      : of_(of), segment_(segment), arena_(arena), stream_(stream), common_(common), report_(report) {}

  void run() {
    if (segment_.range.size() == 0) return;
    const auto reduction = of_.code_.reduction(segment_.round);
    if (reduction && !segment_.sources[0].raw) return reduce(*reduction);
    fill_units(false);
    const bool encodes = !segment_.payload.empty();
    const float* const values =
        encodes && is_as_it_is() ? static_cast<const float*>(segment_.sources[0].data) : accumulate();
    if (encodes) encode(values);
    if (segment_.raw_out != nullptr) deliver(encodes ? nullptr : values);
  }

  /// Payloads of floats become one, which goes on or is decoded. Nothing is kept of one that is not finite.
  void reduce(Reduction reduction) {
    const std::size_t bytes = segment_.sources[0].bytes;
    const auto count = static_cast<std::int64_t>(bytes / sizeof(float));
    auto* const sent = reinterpret_cast<float*>(segment_.payload.data());
    float* const one = sent != nullptr ? sent : take<float>(count);
    std::vector<RawSource> payloads;
    for (const Source& source : segment_.sources) {
      CASYNC_CHECK(!source.raw && source.bytes == bytes, of_.codec_->info().spec, ": payloads of one length");
      payloads.push_back({.payload = static_cast<const std::byte*>(source.data)});
    }
    const RawMerge merge{
        .largest = reduction == Reduction::max, .out = one, .n = count, .nonfinite = &report_->nonfinite};
    common_.merge(DType::float32, payloads, merge, stream_);
    if (reduction == Reduction::mean && payloads.size() > 1)
      common_.divide(DType::float32, {one, static_cast<float>(payloads.size()), 1.0F, one, count, &report_->nonfinite},
                     stream_);
    report_->payload_bytes = sent != nullptr ? static_cast<std::int64_t>(bytes) : 0;
    if (segment_.raw_out == nullptr) return;
    fill_units(false);
    auto* const lost = take<SegmentReport>(1);
    zero(lost, sizeof *lost);
    common_.look({one, count, lost}, stream_);
    common_.look({received(), static_cast<std::int64_t>(segment_.previous.size() / sizeof(float)), lost}, stream_);
    float* const to = single() && segment_.mid == 1.0F && segment_.post == 1.0F ? out() : take<float>(n());
    decode({.units = units_,
            .payload = reinterpret_cast<const std::byte*>(one),
            .out = to,
            .keep = true,
            .lost = &lost->nonfinite},
           bytes, 0);
    deliver(to);
  }

  void propose() {
    fill_units(true);
    const float* const values = is_as_it_is() ? static_cast<const float*>(segment_.sources[0].data) : accumulate();
    auto* const proposed = reinterpret_cast<float*>(segment_.payload.data());
    ProposeBatch batch{.encode = {.units = units_, .accumulated = values}, .proposed = proposed};
    launch(of_.propose_, batch);
    report_->payload_bytes = sizeof(float);
  }

  void agree() {
    fill_units(true);
    auto* const mean = take<float>(1);
    zero(mean, sizeof(float));
    std::vector<RawSource> proposals{{.raw = mean}};
    for (const Source& proposal : segment_.sources)
      proposals.push_back({.payload = static_cast<const std::byte*>(proposal.data)});
    common_.merge(DType::float32, proposals, {.out = mean, .n = 1, .nonfinite = &report_->nonfinite}, stream_);
    const auto ranks = static_cast<float>(segment_.sources.size());
    common_.divide(DType::float32, {mean, ranks, 1.0F, mean, 1, &report_->nonfinite}, stream_);
    AgreeBatch batch{.units = units_, .received = mean};
    launch(of_.agree_, batch);
  }

 private:
  bool single() const { return segment_.dtype == DType::float32; }
  /// Of float32.
  float* out() const { return static_cast<float*>(segment_.raw_out); }
  std::int64_t n() const { return segment_.range.size(); }
  template <typename T>
  T* take(std::int64_t count) {
    return reinterpret_cast<T*>(arena_.take(static_cast<std::size_t>(count) * sizeof(T)));
  }

  void zero(void* memory, std::size_t bytes) const {
    const auto address = reinterpret_cast<gpu::DevicePointer>(memory);
    CASYNC_CUDA(of_.device_.driver(), cuMemsetD8Async, address, 0, bytes, stream_);
  }

  /// `whole`: there is but one, the gradient.
  void fill_units(bool whole) {
    layout_ = &of_.layout_of(segment_, whole, stream_);
    units_ = of_.code_.units(segment_);
    CASYNC_CHECK(segment_.state.size() <= std::size(units_.state), of_.codec_->info().spec, " has too many states");
    std::ranges::copy(segment_.state, units_.state);
    units_.begin = pointer_to<std::int64_t>(layout_->begins);
    units_.count = layout_->count;
    units_.longest = layout_->longest;
    units_.teams = std::max(1, std::min(of_.encode_.most_blocks, of_.decode_.most_blocks));
    units_.scratch_each = of_.code_.table().scratch_each(units_);
    const std::int64_t bytes = of_.code_.table().scratch_bytes(units_);
    units_.scratch = arena_.take(static_cast<std::size_t>(bytes));
    zero(units_.scratch, static_cast<std::size_t>(kGridBytes));
  }

  /// Whether the sum is one float32 source, which needs no factor.
  bool is_as_it_is() const {
    return single() && segment_.sources.size() == 1 && segment_.sources[0].raw && segment_.pre == 1.0F;
  }

  /// The sum over the sources, in order: where it goes if it goes there as it is, else in scratch memory. A source that
  /// is to be overwritten must be the first one read.
  float* accumulate() {
    bool in_place = single() && segment_.payload.empty() && segment_.mid == 1.0F && segment_.post == 1.0F;
    for (std::size_t i = 1; i < segment_.sources.size(); ++i) in_place &= segment_.sources[i].data != segment_.raw_out;
    float* const sum = in_place ? out() : take<float>(n());
    for (std::size_t i = 0; i < segment_.sources.size(); ++i) {
      const Source& source = segment_.sources[i];
      if (source.raw) {
        const float* const addend = i == 0 ? nullptr : sum;
        common_.load(segment_.dtype, {source.data, segment_.pre, addend, sum, n(), &report_->nonfinite}, stream_);
      } else {
        decode({.units = units_,
                .into = i == 0 ? Into::set : Into::add,
                .payload = static_cast<const std::byte*>(source.data),
                .out = sum,
                .keep = segment_.payload.empty()},
               source.bytes, static_cast<std::int32_t>(i));
      }
    }
    return sum;
  }

  /// `batch` says what, and where to; it is `bytes` long, and source number `source`.
  void decode(DecodeBatch batch, std::size_t bytes, std::int32_t source) {
    batch.received = received();
    batch.used = take<std::int64_t>(layout_->count);
    if (layout_->payload_begins != 0) {
      batch.at = pointer_to<std::int64_t>(layout_->payload_begins);
    } else {
      auto* const at = take<std::int64_t>(layout_->count + 1);
      batch.at = at;
      LocateBatch locate{.decode = batch, .bytes = static_cast<std::int64_t>(bytes), .at = at};
      launch(of_.locate_, locate);
    }
    launch(of_.decode_, batch);
    common_.report(DecodedBatch{.used = batch.used,
                                .at = batch.at,
                                .count = layout_->count,
                                .bytes = static_cast<std::int64_t>(bytes),
                                .source = source,
                                .report = report_},
                   stream_);
  }

  void encode(const float* values) {
    const std::int64_t slot = of_.code_.slot_bytes(segment_.shape, layout_->longest, segment_.round);
    GatherBatch gather{.encode = {.units = units_,
                                  .round = segment_.round,
                                  .accumulated = values,
                                  .residual = segment_.residual,
                                  .mid = segment_.mid,
                                  .received = received(),
                                  .slots = take<std::byte>(slot * layout_->count),
                                  .slot_bytes = slot,
                                  .encoded = take<EncodedUnit>(layout_->count)},
                       .at = take<std::int64_t>(layout_->count + 1),
                       .payload = segment_.payload.data()};
    EncodeBatch encode = gather.encode;
    launch(of_.encode_, encode);
    launch(of_.place_, gather);
    launch(of_.move_, gather);
    common_.report(EncodedBatch{gather.encode.encoded, gather.at, layout_->count, report_}, stream_);
    if (segment_.raw_out == nullptr) return;
    // Every rank decodes these very bytes.
    float* const to = single() && segment_.post == 1.0F ? out() : take<float>(n());
    DecodeBatch decode{.units = units_,
                       .payload = gather.payload,
                       .at = gather.at,
                       .received = received(),
                       .out = to,
                       .keep = true,
                       .used = take<std::int64_t>(layout_->count)};
    launch(of_.decode_, decode);
    decoded_ = to;
  }

  /// `sum`: what was accumulated; null: what was encoded is delivered.
  void deliver(const float* sum) {
    const float* const from = sum == nullptr ? decoded_ : sum;
    if (single() && from == out()) {
      common_.look({from, n(), report_}, stream_);
    } else {
      const float factor = sum == nullptr ? 1.0F : segment_.mid;
      common_.store(segment_.dtype, {from, factor, segment_.post, segment_.raw_out, n(), &report_->nonfinite}, stream_);
    }
  }

  const float* received() const { return reinterpret_cast<const float*>(segment_.previous.data()); }

  template <typename Batch>
  void launch(const Kernel& kernel, Batch& batch) const {
    gpu::Grid grid{.threads = kernel.description->threads};
    switch (kernel.description->grid) {
      case Grid::one:
        break;
      case Grid::teams:
        grid.blocks = static_cast<int>(teams_of(units_));
        break;
      case Grid::whole:
        grid.blocks = std::min(kernel.most_blocks, kMostBlocks);
        grid.cooperative = true;
        break;
    }
    void* arguments[]{&batch, &batch_scratch(batch)};
    gpu::launch(of_.device_.driver(), kernel.function, grid, arguments, stream_);
  }
  static std::byte*& batch_scratch(EncodeBatch& batch) { return batch.units.scratch; }
  static std::byte*& batch_scratch(DecodeBatch& batch) { return batch.units.scratch; }
  static std::byte*& batch_scratch(GatherBatch& batch) { return batch.encode.units.scratch; }
  static std::byte*& batch_scratch(LocateBatch& batch) { return batch.decode.units.scratch; }
  static std::byte*& batch_scratch(ProposeBatch& batch) { return batch.encode.units.scratch; }
  static std::byte*& batch_scratch(AgreeBatch& batch) { return batch.units.scratch; }

  DeviceCodec& of_;
  const Segment& segment_;
  gpu::Arena& arena_;
  gpu::Stream stream_;
  const CommonKernels& common_;
  SegmentReport* report_;
  const Layout* layout_ = nullptr;
  Units units_;
  const float* decoded_ = nullptr;
};

DeviceCodec::DeviceCodec(const gpu::Device& device, std::shared_ptr<const Codec> codec, const std::string& code)
    : device_(device),
      codec_(std::move(codec)),
      code_(*codec_->device_code()),
      module_(device, code),
      encode_(load(code_.table().encode)),
      decode_(load(code_.table().decode)),
      place_(load(code_.table().place)),
      move_(load(code_.table().move)),
      locate_(load(code_.table().locate)) {
  if (codec_->agreed() == 0) return;
  propose_ = load(code_.table().propose);
  agree_ = load(code_.table().agree);
}

DeviceCodec::~DeviceCodec() {
  for (const auto& [key, layout] : layouts_) {
    device_.driver().cuMemFree_v2(layout.begins);
    if (layout.payload_begins != 0) device_.driver().cuMemFree_v2(layout.payload_begins);
  }
}

bool DeviceCodec::carries(const Codec& codec, DType dtype, ReduceOp op) {
  const bool sums = op == ReduceOp::sum || op == ReduceOp::average;
  return codec.device_code() != nullptr && sums && is_floating(dtype);
}

DeviceCodec::Kernel DeviceCodec::load(const DeviceKernel& kernel) const {
  const gpu::Function function = module_.function(kernel.name);
  return {&kernel, function, gpu::most_blocks(device_, function, kernel.threads)};
}

gpu::DevicePointer DeviceCodec::upload(const std::vector<std::int64_t>& values, gpu::Stream stream) {
  const std::size_t bytes = values.size() * sizeof values[0];
  gpu::DevicePointer memory = 0;
  void* pinned = nullptr;
  CASYNC_CUDA(device_.driver(), cuMemAlloc_v2, &memory, bytes);
  CASYNC_CUDA(device_.driver(), cuMemHostAlloc, &pinned, bytes, gpu::kPortable);
  std::memcpy(pinned, values.data(), bytes);
  CASYNC_CUDA(device_.driver(), cuMemcpyHtoDAsync_v2, memory, pinned, bytes, stream);
  CASYNC_CUDA(device_.driver(), cuStreamSynchronize, stream);
  device_.driver().cuMemFreeHost(pinned);
  return memory;
}

/// A gradient has the same partitions in each step, so this is made once.
const DeviceCodec::Layout& DeviceCodec::layout_of(const Segment& segment, bool whole, gpu::Stream stream) {
  const Range& range = segment.range;
  const auto [at, is_new] =
      layouts_.try_emplace({segment.shape.rows, segment.shape.cols, range.begin, range.end, segment.round, whole});
  Layout& layout = at->second;
  if (!is_new) return layout;
  const std::vector<std::int64_t> begins =
      whole ? std::vector{range.begin, range.end} : code_.begins(segment.shape, range);
  std::vector<std::int64_t> payload_begins{0};
  layout.count = static_cast<std::int64_t>(begins.size()) - 1;
  for (std::size_t u = 0; u + 1 < begins.size(); ++u) {
    const std::int64_t elements = begins[u + 1] - begins[u];
    layout.longest = std::max(layout.longest, elements);
    payload_begins.push_back(payload_begins.back() + code_.slot_bytes(segment.shape, elements, segment.round));
  }
  try {
    layout.begins = upload(begins, stream);
    if (codec_->info().fixed_size) layout.payload_begins = upload(payload_begins, stream);
  } catch (...) {
    if (layout.begins != 0) device_.driver().cuMemFree_v2(layout.begins);
    layouts_.erase(at);
    throw;
  }
  return layout;
}

void DeviceCodec::launch(const Segment& segment, gpu::Arena& arena, gpu::Stream stream, const CommonKernels& common,
                         SegmentReport* report) {
  *report = {};
  check_segment(*codec_, segment);
  CASYNC_CHECK(carries(*codec_, segment.dtype, segment.op) && segment.sources.size() > 0, codec_->info().spec,
               ": no device does this");
  if (segment.round > 0 && segment.range.size() > 0) {
    const std::size_t expected = codec_->bound(segment.shape, segment.dtype, segment.range, segment.round - 1);
    if (segment.previous.size() != expected) throw_corrupt(codec_->info(), segment, segment.previous.size(), expected);
  }
  Launch(*this, segment, arena, stream, common, report).run();
}

void DeviceCodec::settle(const Segment& segment, gpu::Arena& arena, gpu::Stream stream, const CommonKernels& common,
                         SegmentReport* report) {
  *report = {};
  CASYNC_CHECK(codec_->agreed() == 1 && segment.sources.size() > 0, codec_->info().spec, " settles nothing");
  Launch launch(*this, segment, arena, stream, common, report);
  segment.payload.empty() ? launch.agree() : launch.propose();
}

}  // namespace casync::codec::cuda
