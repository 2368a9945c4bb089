#include "codec/cuda/device_codec.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>
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

bool is_single(const Segment& segment) { return segment.dtype == DType::float32; }

/// Whether the sum is one float32 source, which needs no factor.
bool is_as_it_is(const Segment& segment) {
  return is_single(segment) && segment.sources.size() == 1 && segment.sources[0].raw && segment.pre == 1.0F;
}

/// Whether the sum is added up where the result goes. A source that is to be overwritten must be the first one read.
bool is_in_place(const Segment& segment) {
  bool in_place = is_single(segment) && segment.payload.empty() && segment.mid == 1.0F && segment.post == 1.0F;
  for (std::size_t i = 1; i < segment.sources.size(); ++i) in_place &= segment.sources[i].data != segment.raw_out;
  return in_place;
}

/// Whether the sum begins with what is there already.
bool is_begun(const Segment& segment) {
  const Source& first = segment.sources[0];
  return is_in_place(segment) && first.raw && first.data == segment.raw_out && segment.pre == 1.0F;
}

/// Whether what was encoded is decoded where the result goes.
bool is_decoded_in_place(const Segment& segment) { return is_single(segment) && segment.post == 1.0F; }

/// Segments of one form take the same steps.
auto form_of(const Segment& segment) {
  std::vector<bool> is_raw;
  for (const Source& source : segment.sources) is_raw.push_back(source.raw);
  return std::tuple(segment.dtype, segment.round, is_raw, !segment.payload.empty(), segment.raw_out != nullptr,
                    is_as_it_is(segment), is_in_place(segment), is_begun(segment), is_decoded_in_place(segment));
}

}  // namespace

/// Segments of one form on their way to the stream.
class DeviceCodec::Group {
 public:
  /// `whole`: there is but one unit, the gradient.
  Group(DeviceCodec& of, std::span<const DeviceJob> jobs, bool whole, gpu::Arena& arena, gpu::Stream stream,
        const CommonKernels& common)
      : of_(of), arena_(arena), common_(common), form_(*jobs[0].segment), launches_(of.device_.driver()) {
    for (const DeviceJob& job : jobs) {
      members_.push_back({.segment = *job.segment,
                          .report = job.report,
                          .by_lane = job.by_lane,
                          .layout = of.layout_of(*job.segment, whole, stream)});
      units_.push_back(members_.back().layout.count);
    }
  }

  Launches prepare() {
    divide_units();
    if (const Round round = of_.code_.round(form_.round); round.merge != Merge::none && !form_.sources[0].raw) {
      reduce(round, members_[0]);
      return std::move(launches_);
    }
    const bool encodes = !form_.payload.empty();
    accumulate(encodes);
    if (encodes) encode();
    if (form_.raw_out != nullptr) deliver(encodes);
    return std::move(launches_);
  }

  Launches propose() {
    divide_units();
    accumulate(true);
    auto* const proposed = reinterpret_cast<float*>(form_.payload.data());
    const EncodeBatch encode{.units = members_[0].units, .accumulated = members_[0].values};
    launch(of_.propose_, std::vector{ProposeBatch{.encode = encode, .proposed = proposed}}, units_);
    members_[0].report->payload_bytes = sizeof(float);
    return std::move(launches_);
  }

  Launches agree() {
    divide_units();
    const Member& one = members_[0];
    auto* const mean = take<float>(1);
    launches_.zero(reinterpret_cast<std::byte*>(mean), sizeof(float));
    std::vector<RawSource> proposals{{.raw = mean}};
    for (const Source& proposal : form_.sources)
      proposals.push_back({.payload = static_cast<const std::byte*>(proposal.data)});
    std::int32_t* const nonfinite = &one.report->nonfinite;
    common_.merge(DType::float32, proposals, {.out = mean, .n = 1, .nonfinite = nonfinite}, launches_);
    const auto ranks = static_cast<float>(form_.sources.size());
    common_.divide(DType::float32, {{mean, ranks, 1.0F, mean, 1, nonfinite}}, launches_);
    launch(of_.agree_, std::vector{AgreeBatch{.units = one.units, .received = mean}}, units_);
    return std::move(launches_);
  }

 private:
  struct Member {
    const Segment& segment;
    SegmentReport* report;
    bool by_lane;
    const Layout& layout;
    Units units{};
    std::vector<const std::byte*> sources{};  ///< where kernels read them
    const float* values = nullptr;            ///< what was accumulated, and then what was decoded

    std::int64_t n() const { return segment.range.size(); }
    float* out() const { return static_cast<float*>(segment.raw_out); }  ///< of float32
    const std::byte* received() const { return segment.previous.data(); }
  };

  template <typename T>
  T* take(std::int64_t count) {
    return reinterpret_cast<T*>(arena_.take(static_cast<std::size_t>(count) * sizeof(T)));
  }
  /// What `make` gives for each member.
  template <typename Make>
  auto each(const Make& make) {
    std::vector<decltype(make(members_[0]))> made;
    for (Member& member : members_) made.push_back(make(member));
    return made;
  }

  /// All units have one row of teams, and one scratch memory, each team's part of which has room for the longest.
  void divide_units() {
    Units all = of_.code_.units(form_);
    all.count = 0;
    for (const Member& member : members_) {
      all.count += member.layout.count;
      all.longest = std::max(all.longest, member.layout.longest);
    }
    all.teams = divide(*of_.encode_.description, all.count, all.longest, of_.encode_.most_blocks).teams;
    longest_ = all.longest;
    for (Member& member : members_) {
      member.units = of_.code_.units(member.segment);
      member.units.longest = all.longest;
      all.scratch_each = std::max(all.scratch_each, of_.code_.table().scratch_each(member.units));
    }
    Units room = members_[0].units;  // for a proposal, too
    room.teams = all.teams;
    room.scratch_each = all.scratch_each;
    const std::int64_t bytes =
        std::max(kGridBytes + all.teams * all.scratch_each, of_.code_.table().scratch_bytes(room));
    scratch_ = arena_.take(static_cast<std::size_t>(bytes));
    launches_.zero(scratch_, static_cast<std::size_t>(kGridBytes));
    for (Member& member : members_) {
      CASYNC_CHECK(member.segment.state.size() <= std::size(member.units.state), of_.codec_->info().spec,
                   " has too many states");
      std::ranges::copy(member.segment.state, member.units.state);
      member.units.begin = pointer_to<std::int64_t>(member.layout.begins);
      member.units.count = member.layout.count;
      member.units.teams = all.teams;
      member.units.scratch = scratch_;
      member.units.scratch_each = all.scratch_each;
    }
  }

  /// The sums over the sources, in order: where they go if they go there as they are, else in scratch memory.
  void accumulate(bool encodes) {
    if (encodes && is_as_it_is(form_)) {
      for (Member& member : members_) member.values = static_cast<const float*>(member.segment.sources[0].data);
      return;
    }
    fetch_payloads();
    const auto sums = each([&](Member& one) { return is_in_place(form_) ? one.out() : take<float>(one.n()); });
    for (std::size_t m = 0; m < members_.size(); ++m) members_[m].values = sums[m];
    for (std::size_t i = is_begun(form_) ? 1 : 0; i < form_.sources.size(); ++i) {
      if (form_.sources[i].raw) {
        std::size_t m = 0;
        common_.load(form_.dtype, each([&](Member& one) {
                       float* const sum = sums[m++];
                       const float* const addend = i == 0 ? nullptr : sum;
                       return RawLoad{one.segment.sources[i].data, one.segment.pre, addend, sum, one.n(),
                                      &one.report->nonfinite};
                     }),
                     launches_);
      } else {
        std::size_t m = 0;
        decode(each([&](Member& one) {
                 return DecodeBatch{.units = one.units,
                                    .into = i == 0 ? Into::set : Into::add,
                                    .payload = one.sources[i],
                                    .received = one.received(),
                                    .out = sums[m++],
                                    .keep = !encodes};
               }),
               i);
      }
    }
  }

  /// Payloads become one, which goes on or is decoded. Nothing is kept of one that is not finite.
  void reduce(const Round& round, Member& of) {
    const std::size_t bytes = form_.sources[0].bytes;
    const auto count = static_cast<std::int64_t>(bytes / size_of(round.element));
    fetch_payloads();
    std::vector<RawSource> payloads;
    for (std::size_t i = 0; i < form_.sources.size(); ++i) {
      const Source& source = form_.sources[i];
      CASYNC_CHECK(!source.raw && source.bytes == bytes, of_.codec_->info().spec, ": payloads of one length");
      payloads.push_back({.payload = of.sources[i]});
    }
    auto* const one = take<float>(count);
    std::int32_t* const nonfinite = &of.report->nonfinite;
    const RawMerge merge{.largest = round.merge == Merge::max, .out = one, .n = count, .nonfinite = nonfinite};
    common_.merge(round.element, payloads, merge, launches_);
    const auto ranks = static_cast<float>(payloads.size());
    if (round.merge == Merge::mean && payloads.size() > 1)
      common_.divide(DType::float32, {{one, ranks, 1.0F, one, count, nonfinite}}, launches_);
    auto* merged = reinterpret_cast<std::byte*>(one);
    if (round.element != DType::float32) {
      merged = take<std::byte>(static_cast<std::int64_t>(bytes));
      common_.store(round.element, {{one, 1.0F, 1.0F, merged, count, nonfinite}}, launches_);
    }
    if (!form_.payload.empty()) {
      const CopyBatch copy{.from = merged, .to = form_.payload.data(), .bytes = static_cast<std::int64_t>(bytes)};
      common_.carry({copy}, false, launches_);
      of.report->payload_bytes = copy.bytes;
    }
    if (form_.raw_out == nullptr) return;
    auto* const lost = take<SegmentReport>(1);
    launches_.zero(reinterpret_cast<std::byte*>(lost), sizeof *lost);
    common_.load(round.element, {{merged, 1.0F, nullptr, one, count, &lost->nonfinite}}, launches_);
    if (form_.round > 0) {
      const DType element = of_.code_.round(form_.round - 1).element;
      const auto previous = static_cast<std::int64_t>(form_.previous.size() / size_of(element));
      const RawLoad look{
          .src = of.received(), .out = take<float>(previous), .n = previous, .nonfinite = &lost->nonfinite};
      common_.load(element, {look}, launches_);
    }
    float* const to = is_single(form_) && form_.mid == 1.0F && form_.post == 1.0F ? of.out() : take<float>(of.n());
    of.values = to;
    Units units = of.units;
    units.facts.merged = units.facts.world;
    decode({{.units = units,
             .payload = merged,
             .received = of.received(),
             .out = to,
             .keep = true,
             .lost = &lost->nonfinite}},
           0);
    if (to == of.out()) {
      common_.look({{to, of.n(), of.report}}, launches_);
    } else {
      common_.store(form_.dtype, {{to, form_.mid, form_.post, form_.raw_out, of.n(), nonfinite}}, launches_);
    }
  }

  /// Brings what is encoded to the device.
  void fetch_payloads() {
    std::vector<CopyBatch> copies;
    for (Member& member : members_)
      for (const Source& source : member.segment.sources) {
        const auto* const from = static_cast<const std::byte*>(source.data);
        const bool stays = source.raw || member.by_lane || source.bytes == 0;
        std::byte* const to = stays ? nullptr : arena_.take(source.bytes);
        member.sources.push_back(stays ? from : to);
        if (!stays) copies.push_back({.from = from, .to = to, .bytes = static_cast<std::int64_t>(source.bytes)});
      }
    common_.carry(copies, true, launches_);
  }

  /// Source i of each; `batches` say what and where to.
  void decode(std::vector<DecodeBatch> batches, std::size_t i) {
    for (std::size_t m = 0; m < batches.size(); ++m) {
      batches[m].at = pointer_to<std::int64_t>(members_[m].layout.payload_begins);
      batches[m].used = take<std::int64_t>(members_[m].layout.count);
    }
    const auto bytes_of = [&](std::size_t m) {
      return static_cast<std::int64_t>(members_[m].segment.sources[i].bytes);
    };
    if (!is_fixed()) {
      std::vector<LocateBatch> locates;
      for (std::size_t m = 0; m < batches.size(); ++m) {
        auto* const at = take<std::int64_t>(members_[m].layout.count + 1);
        batches[m].at = at;
        locates.push_back({.decode = batches[m], .bytes = bytes_of(m), .at = at});
      }
      launch(of_.locate_, locates, ones());
    }
    launch(of_.decode_, batches, units_);
    std::vector<DecodedBatch> reports;
    for (std::size_t m = 0; m < batches.size(); ++m)
      reports.push_back({.used = batches[m].used,
                         .at = batches[m].at,
                         .count = members_[m].layout.count,
                         .bytes = bytes_of(m),
                         .source = static_cast<std::int32_t>(i),
                         .report = members_[m].report});
    common_.report(reports, launches_);
  }

  /// Memory of the device for what is sent.
  std::byte* payload_of(const Member& one, std::int64_t most) {
    return one.by_lane ? one.segment.payload.data() : take<std::byte>(most);
  }

  /// Where units have a length of their own they are encoded into slots first.
  void encode() {
    const auto encodes = each([&](Member& one) {
      const std::int64_t slot = of_.code_.slot_bytes(one.segment.shape, one.layout.longest, one.segment.round);
      return EncodeBatch{
          .units = one.units,
          .round = one.segment.round,
          .accumulated = one.values,
          .residual = one.segment.residual,
          .mid = one.segment.mid,
          .received = one.received(),
          .slots = is_fixed() ? payload_of(one, one.layout.payload_bytes) : take<std::byte>(slot * one.layout.count),
          .at = pointer_to<std::int64_t>(one.layout.payload_begins),
          .slot_bytes = slot,
          .encoded = take<EncodedUnit>(one.layout.count)};
    });
    launch(of_.encode_, encodes, units_);
    std::vector<GatherBatch> gathers;
    std::vector<DecodeBatch> decodes;
    std::vector<EncodedBatch> reports;
    std::vector<CopyBatch> copies;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      Member& one = members_[m];
      const EncodeBatch& encode = encodes[m];
      const std::byte* payload = encode.slots;
      const std::int64_t* at = encode.at;
      std::int64_t most = one.layout.payload_bytes;
      if (!is_fixed()) {
        most = encode.slot_bytes * one.layout.count;
        gathers.push_back(
            {.encode = encode, .at = take<std::int64_t>(one.layout.count + 1), .payload = payload_of(one, most)});
        payload = gathers.back().payload;
        at = gathers.back().at;
      }
      if (!one.by_lane)
        copies.push_back({.from = payload,
                          .to = one.segment.payload.data(),
                          .length = is_fixed() ? nullptr : at + one.layout.count,
                          .bytes = most});
      reports.push_back({encode.encoded, at, one.layout.count, one.report});
      if (form_.raw_out == nullptr) continue;
      decodes.push_back({.units = one.units,
                         .payload = payload,
                         .at = at,
                         .received = one.received(),
                         .out = is_decoded_in_place(form_) ? one.out() : take<float>(one.n()),
                         .keep = true,
                         .used = take<std::int64_t>(one.layout.count)});
      one.values = decodes.back().out;
    }
    if (!is_fixed()) {
      launch(of_.place_, gathers, ones());
      launch(of_.move_, gathers, units_);
    }
    common_.carry(copies, false, launches_);
    common_.report(reports, launches_);
    if (!decodes.empty()) launch(of_.decode_, decodes, units_);  // every rank decodes these very bytes
  }

  void deliver(bool encoded) {
    if (encoded ? is_decoded_in_place(form_) : is_in_place(form_)) {
      common_.look(each([](Member& one) { return LookBatch{one.values, one.n(), one.report}; }), launches_);
      return;
    }
    common_.store(form_.dtype, each([&](Member& one) {
                    const float factor = encoded ? 1.0F : one.segment.mid;
                    return RawStore{one.values,          factor,  one.segment.post,
                                    one.segment.raw_out, one.n(), &one.report->nonfinite};
                  }),
                  launches_);
  }

  bool is_fixed() const { return of_.codec_->info().fixed_size; }
  std::vector<std::int64_t> ones() const { return std::vector<std::int64_t>(members_.size(), 1); }

  template <typename Batch>
  void launch(const Kernel& kernel, const std::vector<Batch>& batches, const std::vector<std::int64_t>& items) {
    const int teams = members_[0].units.teams;
    gpu::Grid grid{.threads = kernel.description->threads};
    switch (kernel.description->grid) {
      case Grid::teams:
        grid.blocks = teams;
        break;
      case Grid::wide:
        grid.teams = teams;
        grid.blocks = divide(*kernel.description, teams, longest_, kernel.most_blocks).blocks;
        grid.cooperative = grid.blocks > 1;
        break;
    }
    launches_.add(kernel.function, grid, scratch_, batches, items);
  }

  DeviceCodec& of_;
  gpu::Arena& arena_;
  const CommonKernels& common_;
  const Segment& form_;  // the first one, which the others are like
  std::vector<Member> members_;
  std::vector<std::int64_t> units_;  // of each
  std::int64_t longest_ = 0;
  std::byte* scratch_ = nullptr;
  Launches launches_;
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

bool DeviceCodec::supports(const Codec& codec, DType dtype, ReduceOp op) {
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
    if (codec_->info().fixed_size) {
      layout.payload_begins = upload(payload_begins, stream);
      layout.payload_bytes = payload_begins.back();
    }
  } catch (...) {
    if (layout.begins != 0) device_.driver().cuMemFree_v2(layout.begins);
    layouts_.erase(at);
    throw;
  }
  return layout;
}

void DeviceCodec::check(const Segment& segment) const {
  check_segment(*codec_, segment);
  CASYNC_CHECK(supports(*codec_, segment.dtype, segment.op) && segment.sources.size() > 0, codec_->info().spec,
               ": no device does this");
  if (segment.round > 0 && segment.range.size() > 0) {
    const std::size_t expected = codec_->bound(segment.shape, segment.dtype, segment.range, segment.round - 1);
    if (segment.previous.size() != expected) throw_corrupt(codec_->info(), segment, segment.previous.size(), expected);
  }
}

std::vector<std::vector<DeviceJob>> DeviceCodec::groups(std::span<const DeviceJob> jobs) const {
  struct Open {
    std::size_t group;
    std::int64_t elements;
  };
  std::map<decltype(form_of(*jobs[0].segment)), Open> open;
  std::vector<std::vector<DeviceJob>> groups;
  for (const DeviceJob& job : jobs) {
    const std::int64_t elements = job.segment->range.size();
    if (elements == 0) continue;
    if (code_.round(job.segment->round).merge != Merge::none && !job.segment->sources[0].raw) {
      groups.push_back({job});
      continue;
    }
    const auto [at, is_new] = open.try_emplace(form_of(*job.segment), Open{groups.size(), 0});
    if (!is_new && at->second.elements + elements > kMostTogether) at->second = {groups.size(), 0};
    if (at->second.group == groups.size()) groups.emplace_back();
    groups[at->second.group].push_back(job);
    at->second.elements += elements;
  }
  return groups;
}

Launches DeviceCodec::prepare(std::span<const DeviceJob> group, gpu::Arena& arena, gpu::Stream stream,
                              const CommonKernels& common) {
  return Group(*this, group, false, arena, stream, common).prepare();
}

Launches DeviceCodec::settle(const DeviceJob& job, gpu::Arena& arena, gpu::Stream stream, const CommonKernels& common) {
  CASYNC_CHECK(codec_->agreed() == 1 && job.segment->sources.size() > 0, codec_->info().spec, " settles nothing");
  Group one(*this, {&job, 1}, true, arena, stream, common);
  return job.segment->payload.empty() ? one.agree() : one.propose();
}

}  // namespace casync::codec::cuda
