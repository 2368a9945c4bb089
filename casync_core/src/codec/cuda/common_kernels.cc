#include "codec/cuda/common_kernels.hpp"

#include <algorithm>

namespace casync::codec::cuda {
namespace {

constexpr int kThreads = kLoadRaw[0].threads;  // all have as many

constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }

}  // namespace

CommonKernels::CommonKernels(const casync::cuda::Device& device, const std::string& code)
    : driver_(device.driver()),
      module_(device, code),
      look_(module_.function("casync_look_at_float32")),
      encoded_(module_.function("casync_report_encoded")),
      decoded_(module_.function("casync_report_decoded")) {
  for (std::size_t dtype = 0; dtype < load_.size(); ++dtype) {
    load_[dtype] = module_.function(kLoadRaw[dtype].name);
    store_[dtype] = module_.function(kStoreRaw[dtype].name);
  }
  for (std::size_t dtype = 0; dtype < merge_.size(); ++dtype) {
    divide_[dtype] = module_.function(kDivideRaw[dtype].name);
    merge_[dtype] = module_.function(kMergeRaw[dtype].name);
  }
  most_blocks_ = std::max(1, casync::cuda::most_blocks(device, load_[0], kThreads));
}

/// All of them work on elements that any number of blocks share; the last argument is scratch memory, which none has.
template <typename Arguments>
void CommonKernels::launch(casync::cuda::Function function, Arguments& arguments, std::int64_t elements,
                           casync::cuda::Stream stream) const {
  const auto blocks = std::clamp<std::int64_t>((elements + kThreads - 1) / kThreads, 1, most_blocks_);
  std::int64_t* scratch = nullptr;
  void* given[]{&arguments, &scratch};
  casync::cuda::launch(driver_, function, {.blocks = static_cast<int>(blocks), .threads = kThreads}, given, stream);
}

void CommonKernels::load(DType dtype, RawLoad load, casync::cuda::Stream stream) const {
  launch(load_[index_of(dtype)], load, load.n, stream);
}
void CommonKernels::store(DType dtype, RawStore store, casync::cuda::Stream stream) const {
  launch(store_[index_of(dtype)], store, store.n, stream);
}
void CommonKernels::divide(DType dtype, RawStore store, casync::cuda::Stream stream) const {
  launch(divide_[index_of(dtype)], store, store.n, stream);
}
void CommonKernels::merge(DType dtype, std::span<const RawSource> sources, RawMerge to,
                          casync::cuda::Stream stream) const {
  while (!sources.empty()) {
    const std::size_t taken = std::min(sources.size(), static_cast<std::size_t>(RawMerge::kMost - to.count));
    std::ranges::copy(sources.first(taken), to.sources + to.count);
    to.count += static_cast<std::int32_t>(taken);
    launch(merge_[index_of(dtype)], to, to.n, stream);
    to.sources[0] = {.raw = to.out};
    to.count = 1;
    sources = sources.subspan(taken);
  }
}
void CommonKernels::look(LookBatch batch, casync::cuda::Stream stream) const { launch(look_, batch, batch.n, stream); }
void CommonKernels::report(EncodedBatch batch, casync::cuda::Stream stream) const {
  launch(encoded_, batch, 1, stream);
}
void CommonKernels::report(DecodedBatch batch, casync::cuda::Stream stream) const {
  launch(decoded_, batch, 1, stream);
}

}  // namespace casync::codec::cuda
