#include "codec/cuda/common_kernels.hpp"

#include <algorithm>
#include <numeric>

namespace casync::codec::cuda {
namespace {

constexpr int kThreads = kLoadRaw[0].threads;  // all have as many

/// A payload from here on is copied by the copy engine. For a shorter one an asynchronous copy takes longer to begin
/// than to make: those of all gradients are copied by one kernel.
constexpr std::int64_t kWorthACopy = 65536;

constexpr std::size_t index_of(DType dtype) { return static_cast<std::size_t>(dtype); }
constexpr std::int64_t pieces(std::int64_t n, std::int64_t piece) { return (n + piece - 1) / piece; }

}  // namespace

CommonKernels::CommonKernels(const casync::cuda::Device& device, const std::string& code)
    : module_(device, code),
      look_(module_.function("casync_look_at_float32")),
      encoded_(module_.function("casync_report_encoded")),
      decoded_(module_.function("casync_report_decoded")),
      copy_(module_.function("casync_copy")) {
  for (std::size_t dtype = 0; dtype < load_.size(); ++dtype) {
    load_[dtype] = module_.function(kLoadRaw[dtype].name);
    store_[dtype] = module_.function(kStoreRaw[dtype].name);
  }
  for (std::size_t dtype = 0; dtype < divide_.size(); ++dtype)
    divide_[dtype] = module_.function(kDivideRaw[dtype].name);
  for (std::size_t dtype = 0; dtype < merge_.size(); ++dtype)
    if (kMergeRaw[dtype].name != nullptr) merge_[dtype] = module_.function(kMergeRaw[dtype].name);
  most_blocks_ = std::max(1, casync::cuda::most_blocks(device, load_[0], kThreads));
}

/// Any number of blocks takes the items of all; none has scratch memory.
template <typename Arguments, typename Items>
void CommonKernels::add(casync::cuda::Function function, const std::vector<Arguments>& arguments, const Items& items_of,
                        Launches& launches) const {
  std::vector<std::int64_t> items;
  for (const Arguments& one : arguments) items.push_back(items_of(one));
  const auto all = std::accumulate(items.begin(), items.end(), std::int64_t{0});
  const auto blocks = static_cast<int>(std::clamp<std::int64_t>(all, 1, most_blocks_));
  launches.add(function, {.blocks = blocks, .threads = kThreads}, nullptr, arguments, items);
}

void CommonKernels::load(DType dtype, const std::vector<RawLoad>& loads, Launches& launches) const {
  add(load_[index_of(dtype)], loads, [](const RawLoad& load) { return pieces(load.n, kPiece); }, launches);
}
void CommonKernels::store(DType dtype, const std::vector<RawStore>& stores, Launches& launches) const {
  add(store_[index_of(dtype)], stores, [](const RawStore& store) { return pieces(store.n, kPiece); }, launches);
}
void CommonKernels::divide(DType dtype, const std::vector<RawStore>& stores, Launches& launches) const {
  add(divide_[index_of(dtype)], stores, [](const RawStore& store) { return pieces(store.n, kPiece); }, launches);
}
void CommonKernels::merge(DType dtype, std::span<const RawSource> sources, RawMerge to, Launches& launches) const {
  while (!sources.empty()) {
    const std::size_t taken = std::min(sources.size(), static_cast<std::size_t>(RawMerge::kMost - to.count));
    std::ranges::copy(sources.first(taken), to.sources + to.count);
    to.count += static_cast<std::int32_t>(taken);
    add(merge_[index_of(dtype)], std::vector{to}, [](const RawMerge& one) { return pieces(one.n, kPiece); }, launches);
    to.sources[0] = {.raw = to.out};
    to.count = 1;
    sources = sources.subspan(taken);
  }
}
void CommonKernels::look(const std::vector<LookBatch>& looks, Launches& launches) const {
  add(look_, looks, [](const LookBatch& look) { return pieces(look.n, kPiece); }, launches);
}
void CommonKernels::report(const std::vector<EncodedBatch>& reports, Launches& launches) const {
  add(encoded_, reports, [](const EncodedBatch&) { return 1; }, launches);
}
void CommonKernels::report(const std::vector<DecodedBatch>& reports, Launches& launches) const {
  add(decoded_, reports, [](const DecodedBatch&) { return 1; }, launches);
}
void CommonKernels::carry(const std::vector<CopyBatch>& payloads, bool to_device, Launches& launches) const {
  std::vector<CopyBatch> rest;
  for (const CopyBatch& one : payloads) {
    if (one.length != nullptr || one.bytes < kWorthACopy) {
      rest.push_back(one);
    } else {
      const auto copy = to_device ? &Launches::copy_to_device : &Launches::copy_to_host;
      (launches.*copy)(one.to, one.from, static_cast<std::size_t>(one.bytes));
    }
  }
  if (rest.empty()) return;
  add(copy_, rest, [](const CopyBatch& copy) { return pieces(copy.bytes, CopyBatch::kPiece); }, launches);
}

}  // namespace casync::codec::cuda
