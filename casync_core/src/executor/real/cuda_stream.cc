#include "executor/real/cuda_stream.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "casync/error.hpp"
#include "codec/cuda/element_codec.hpp"
#include "common/clock.hpp"
#include "executor/memory/tensor_sizes.hpp"

namespace casync {
namespace {

using codec::cuda::DeviceCodec;
using codec::cuda::DeviceJob;
using codec::cuda::ElementCodec;
using codec::cuda::SegmentReport;

cuda::DevicePointer address(const void* of) { return reinterpret_cast<cuda::DevicePointer>(of); }

}  // namespace

std::byte* CudaStream::Pinned::allocate(std::size_t bytes) {
  try {
    const cuda::Device::Current current(of_.device_);
    void* memory = nullptr;
    CASYNC_CUDA(of_.driver_, cuMemHostAlloc, &memory, bytes, cuda::kPortable);
    return static_cast<std::byte*>(memory);
  } catch (const DeviceFailure& failure) {
    of_.lose(failure.what());
    return *plain_.insert(new std::byte[bytes]).first;
  }
}

void CudaStream::Pinned::free(std::byte* memory) {
  if (plain_.erase(memory) > 0) {
    delete[] memory;
    return;
  }
  if (of_.is_stuck_) return;
  try {
    const cuda::Device::Current current(of_.device_);
    of_.driver_.cuMemFreeHost(memory);
  } catch (const DeviceFailure&) {  // the device is lost, and with it what it had
  }
}

std::byte* CudaStream::Own::allocate(std::size_t bytes) {
  try {
    const cuda::Device::Current current(of_.device_);
    cuda::DevicePointer memory = 0;
    CASYNC_CUDA(of_.driver_, cuMemAlloc_v2, &memory, bytes);
    return reinterpret_cast<std::byte*>(memory);
  } catch (const DeviceFailure& failure) {
    of_.lose(failure.what());
    return nullptr;
  }
}

void CudaStream::Own::free(std::byte* memory) {
  if (of_.is_stuck_) return;
  try {
    const cuda::Device::Current current(of_.device_);
    of_.driver_.cuMemFree_v2(address(memory));
  } catch (const DeviceFailure&) {
  }
}

/// Memory of the device that outlives no stream.
class CudaStream::Floats final : public FarFloats {
 public:
  Floats(CudaStream& of, std::span<const float> values) : of_(of), size_(values.size()) {
    if (size_ == 0) return;
    const cuda::Device::Current current(of_.device_);
    CASYNC_CUDA(of_.driver_, cuMemAlloc_v2, &memory_, values.size_bytes());
    try {
      of_.copy(reinterpret_cast<void*>(memory_), values.data(), values.size_bytes(), true);
    } catch (...) {
      of_.driver_.cuMemFree_v2(memory_);
      throw;
    }
  }
  ~Floats() override {
    if (size_ == 0 || of_.is_stuck_) return;
    try {
      const cuda::Device::Current current(of_.device_);
      of_.driver_.cuMemFree_v2(memory_);
    } catch (const DeviceFailure&) {
    }
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() override { return reinterpret_cast<float*>(memory_); }
  std::size_t size() const override { return size_; }
  /// None, of a device that is lost.
  FloatArray copy() const override {
    FloatArray values(size_);
    try {
      if (size_ > 0) of_.copy(values.data(), reinterpret_cast<const void*>(memory_), size_ * sizeof(float), false);
    } catch (const DeviceFailure& failure) {
      of_.lose(failure.what());
      return {};
    }
    return values;
  }

 private:
  CudaStream& of_;
  std::size_t size_;
  cuda::DevicePointer memory_ = 0;
};

CudaStream::CudaStream(int device, const std::string& common, std::function<void()> ring)
    : driver_(cuda::driver()), device_(driver_, device), bell_(std::move(ring)), slots_(*this), memory_(*this) {
  const cuda::Device::Current current(device_);
  stream_ = device_.make_stream();
  events_ = std::make_unique<cuda::Events>(device_);
  pool_ = std::make_unique<cuda::PinnedPool>(device_, *events_);
  arena_ = std::make_unique<cuda::Arena>(device_, stream_);
  common_ = std::make_unique<codec::cuda::CommonKernels>(device_, common);
}

CudaStream::~CudaStream() {
  quiesce();
  if (has_failed_to_end_) bell_.abandon();
  if (is_stuck_) {
    for (auto& [spec, codec] : codecs_) [[maybe_unused]]
      const auto* const kept = codec.release();
    [[maybe_unused]] const auto* const common = common_.release();
    [[maybe_unused]] const auto* const arena = arena_.release();
    [[maybe_unused]] const auto* const pool = pool_.release();
    [[maybe_unused]] const auto* const events = events_.release();
    return;
  }
  try {
    const cuda::Device::Current current(device_);
    codecs_.clear();
    common_.reset();
    arena_.reset();
    pool_.reset();
    events_.reset();
    driver_.cuStreamDestroy_v2(stream_);
  } catch (const DeviceFailure&) {  // the device is lost, and with it what it had
  }
}

bool CudaStream::ends_in_time() {
  const cuda::Device::Current current(device_);
  const Nanoseconds deadline = steady_now() + kEndTime;
  while (true) {
    const cuda::Result result = driver_.cuStreamQuery(stream_);
    if (result != cuda::kNotReady) driver_.check(result, "cuStreamQuery");
    if (result == cuda::kSuccess) return true;
    if (steady_now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void CudaStream::quiesce() {
  if (is_stuck_) return;
  bell_.silence();
  try {
    if (ends_in_time()) return;
    is_stuck_ = true;
    lose(detail::concat("what was launched does not end in ", kEndTime / 1'000'000'000, " s"));
  } catch (const DeviceFailure&) {
  }
  has_failed_to_end_ = true;  // and may ring yet
}

void CudaStream::add(const std::string& spec, const std::string& code) {
  const std::shared_ptr<const Codec> codec = make_codec(spec);
  if (ElementCodec::supports(*codec, DType::float32, ReduceOp::sum)) return;
  if (codec->device_code() == nullptr) throw InvalidArgument(detail::concat("codec ", spec, " has no device code"));
  const cuda::Device::Current current(device_);
  auto loaded = std::make_unique<DeviceCodec>(device_, codec, code);
  const std::lock_guard lock(mutex_);
  codecs_.try_emplace(codec->info().spec, std::move(loaded));
}

DeviceCodec* CudaStream::codec_of(const Codec& codec) const {
  const std::lock_guard lock(mutex_);
  const auto at = codecs_.find(codec.info().spec);
  return at == codecs_.end() ? nullptr : at->second.get();
}

bool CudaStream::supports(const TaskGraph& graph, const Signature& signature, bool by_lane) const {
  if (signature.kind != OpKind::allreduce || graph.host_only || !(by_lane || graph.sends_slots_only)) return false;
  if (ElementCodec::supports(*graph.codec, signature.dtype, signature.op)) return true;
  return codec_of(*graph.codec) != nullptr && DeviceCodec::supports(*graph.codec, signature.dtype, signature.op);
}

std::string CudaStream::lose(const std::string& why) {
  if (lost_.empty()) lost_ = detail::concat("device ", device_.ordinal(), " failed: ", why);
  return lost_;
}

/// The first source whose length no payload of its codec has.
std::size_t CudaStream::misfit(const Job& job) {
  const std::size_t bound =
      job.codec->bound(job.segment.shape, job.segment.dtype, job.segment.range, job.segment.round);
  const bool is_exact = job.codec->info().fixed_size;
  const auto fits = [&](const Source& source) {
    return source.raw || (is_exact ? source.bytes == bound : source.bytes <= bound);
  };
  const auto at = std::ranges::find_if_not(job.sources, fits);
  return at == job.sources.end() ? Job::kNone : static_cast<std::size_t>(at - job.sources.begin());
}

/// What went wrong with `work` for the device; empty: nothing did.
template <typename Work>
std::string CudaStream::attempt(const Work& work) {
  try {
    if (lost_.empty()) work();
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
  } catch (const std::exception& error) {
    return error.what();
  }
  return lost_;
}

DeviceJob CudaStream::device_job(const Batch& batch, std::size_t job) {
  auto* const reports = reinterpret_cast<SegmentReport*>(batch.reports);
  return {&batch.jobs[job]->segment, reports + job, batch.jobs[job]->by_lane};
}

void CudaStream::check(const Job& job) const {
  if (job.settles) return;
  if (const DeviceCodec* const codec = codec_of(*job.codec)) {
    codec->check(job.segment);
  } else {
    ElementCodec::check(*job.codec, job.segment);
  }
}

void CudaStream::start(Batch& batch, codec::cuda::Launches launches) {
  std::byte* const arguments = pool_->take(launches.argument_bytes());
  batch.arguments.emplace_back(arguments, launches.argument_bytes());
  launches.run(arguments, *arena_, stream_);
}

/// Jobs of one codec, which are well so far. Groups run one after the other, in the same scratch memory.
void CudaStream::launch_together(Batch& batch, DeviceCodec& codec, std::span<const std::size_t> jobs) {
  std::vector<DeviceJob> given;
  for (const std::size_t job : jobs) given.push_back(device_job(batch, job));
  for (const auto& group : codec.groups(given)) {
    arena_->rewind();
    start(batch, codec.prepare(group, *arena_, stream_, *common_));
  }
}

/// One that settles a codec's values, or whose codec needs no code of its own.
void CudaStream::launch_alone(Batch& batch, std::size_t job) {
  const Job& one = *batch.jobs[job];
  if (one.segment.range.size() == 0 && !one.settles) return;
  arena_->rewind();
  if (one.settles) {
    start(batch, codec_of(*one.codec)->settle(device_job(batch, job), *arena_, stream_, *common_));
  } else {
    start(batch, ElementCodec::prepare(*one.codec, device_job(batch, job), driver_, *arena_, *common_));
  }
}

/// What the device computes is launched by codec, between what the host computes in its place.
void CudaStream::launch(Batch& batch) {
  std::map<DeviceCodec*, std::vector<std::size_t>> waiting;
  const auto flush = [&] {
    for (const auto& [codec, jobs] : waiting) {
      const std::string error = attempt([&] { launch_together(batch, *codec, jobs); });
      for (const std::size_t i : jobs) batch.errors[i] = error;
    }
    waiting.clear();
  };
  for (std::size_t i = 0; i < batch.jobs.size(); ++i) {
    Job& job = *batch.jobs[i];
    if (job.on_device) {
      batch.errors[i] = attempt([&] { check(job); });
      DeviceCodec* const codec = codec_of(*job.codec);
      if (!batch.errors[i].empty()) {
        if (lost_.empty()) job.refused = misfit(job);
      } else if (codec != nullptr && !job.settles) {
        waiting[codec].push_back(i);
      } else {
        batch.errors[i] = attempt([&] { launch_alone(batch, i); });
      }
      continue;
    }
    flush();
    // It may read what a job before it writes.
    batch.errors[i] = attempt([&] { CASYNC_CUDA(driver_, cuStreamSynchronize, stream_); });
    if (batch.errors[i].empty()) batch.errors[i] = job.run();
  }
  flush();
}

void CudaStream::run(std::vector<std::unique_ptr<Job>> jobs) {
  Batch batch{.jobs = std::move(jobs)};
  batch.errors.resize(batch.jobs.size());
  batch.launched = steady_now();
  try {
    const cuda::Device::Current current(device_);
    batch.reports = pool_->take(batch.jobs.size() * sizeof(SegmentReport));
    std::uninitialized_value_construct_n(reinterpret_cast<SegmentReport*>(batch.reports), batch.jobs.size());
    launch(batch);
    batch.over = events_->take();
    CASYNC_CUDA(driver_, cuEventRecord, batch.over, stream_);
    bell_.ring_after(driver_, stream_);
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
  }
  launched_.push_back(std::move(batch));
}

/// Which of several sources are not finite: the host looks at each, of which some are memory of the device. So is the
/// state that they are decoded by. What else was launched is over too, so the result may have replaced the program's
/// own contribution, whichever task wrote it.
void CudaStream::blame(Job& job) {
  const std::vector<Source> there = job.sources;
  void* const raw_out = std::exchange(job.segment.raw_out, job.result);
  std::vector<FloatArray> state;
  std::vector<float*> state_here;
  const std::span<float* const> state_there = std::exchange(job.segment.state, {});
  for (std::size_t i = 0; i < state_there.size() && there.size() > 1; ++i) {
    state.emplace_back(static_cast<std::size_t>(job.codec->state(job.segment.shape)[i].elements));
    copy(state.back().data(), state_there[i], state.back().size() * sizeof(float), false);
    state_here.push_back(state.back().data());
  }
  job.segment.state = state_here;
  std::vector<std::vector<std::byte>> copies;
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (there.size() == 1 || there[i].data == job.segment.raw_out) continue;  // that one is no more
    if (!job.is_users[i] && !job.by_lane) continue;                           // the host reads it where it is
    copies.emplace_back(there[i].bytes);
    copy(copies.back().data(), there[i].data, there[i].bytes, false);
    job.sources[i].data = copies.back().data();
  }
  job.find_nonfinite();
  job.sources = there;
  job.segment.state = state_there;
  job.segment.raw_out = raw_out;
}

/// What the device says of a job that it has computed.
void CudaStream::conclude(Job& job, std::string& error, const SegmentReport& report) {
  if (!error.empty() || !job.on_device) return;
  job.segment.payload_bytes = static_cast<std::size_t>(report.payload_bytes);
  if (job.settles) {
    job.settled = job.segment.payload.empty() && report.nonfinite == 0;
    return;
  }
  job.segment.nonfinite = report.nonfinite != 0;
  if (report.overflow != 0) {
    error = detail::concat(job.codec->info().spec, ": a unit needs more than its bound: correct `bound` in the file");
  } else if (report.refused >= 0) {
    job.refused = static_cast<std::size_t>(report.refused);
    error = detail::concat(job.codec->info().spec, ": decode refuses the payload of elements [",
                           job.segment.range.begin, ", ", job.segment.range.end, ")");
  } else if (job.segment.nonfinite) {
    try {
      blame(job);
    } catch (const DeviceFailure& failure) {
      job.device_failed = true;
      error = lose(failure.what());
    } catch (const std::exception& fault) {
      error = fault.what();
    }
  }
}

std::optional<Nanoseconds> CudaStream::collect(Workers::Finished& finished) {
  while (!launched_.empty()) {
    bool is_over = !lost_.empty();
    try {
      const cuda::Device::Current current(device_);
      if (is_over && !is_stuck_) driver_.cuStreamSynchronize(stream_);  // what was launched before may still write
      if (!is_over) is_over = events_->is_over(launched_.front().over);
    } catch (const DeviceFailure& failure) {
      lose(failure.what());
      is_over = true;
    }
    if (!is_over) return kLook;
    Batch batch = std::move(launched_.front());
    launched_.pop_front();
    const Nanoseconds each = (steady_now() - batch.launched) / static_cast<Nanoseconds>(batch.jobs.size());
    const auto* report = reinterpret_cast<const SegmentReport*>(batch.reports);
    for (std::size_t i = 0; i < batch.jobs.size(); ++i) {
      batch.jobs[i]->time = each;
      if (lost_.empty()) {
        conclude(*batch.jobs[i], batch.errors[i], report[i]);
      } else {
        batch.jobs[i]->device_failed = true;
        batch.errors[i] = lost_;
      }
      finished.emplace_back(std::move(batch.jobs[i]), std::move(batch.errors[i]));
    }
    if (!lost_.empty()) continue;
    for (const auto& [arguments, bytes] : batch.arguments) pool_->give(arguments, bytes, nullptr);
    pool_->give(batch.reports, batch.jobs.size() * sizeof(SegmentReport), batch.over);
  }
  return std::nullopt;
}

std::unique_ptr<FarFloats> CudaStream::send(std::span<const float> values, bool must) {
  try {
    return std::make_unique<Floats>(*this, values);
  } catch (const DeviceFailure& failure) {
    if (must) lose(failure.what());
    return nullptr;
  }
}

/// Through pinned memory and on this stream: a copy on the legacy default stream waits for the program's streams, and
/// this one does not wait for that.
void CudaStream::copy(void* to, const void* from, std::size_t bytes, bool to_device) {
  if (is_stuck_) throw DeviceFailure(lost_);
  const cuda::Device::Current current(device_);
  std::byte* const pinned = pool_->take(bytes);
  if (to_device && bytes > 0) {
    std::memcpy(pinned, from, bytes);
    CASYNC_CUDA(driver_, cuMemcpyHtoDAsync_v2, address(to), pinned, bytes, stream_);
  } else if (bytes > 0) {
    CASYNC_CUDA(driver_, cuMemcpyDtoHAsync_v2, pinned, address(from), bytes, stream_);
  }
  CASYNC_CUDA(driver_, cuStreamSynchronize, stream_);
  if (!to_device && bytes > 0) std::memcpy(to, pinned, bytes);
  pool_->give(pinned, bytes, nullptr);
}

std::vector<std::byte> CudaStream::look(const void* data, std::size_t bytes) {
  std::vector<std::byte> found(bytes);
  try {
    copy(found.data(), data, bytes, false);
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
    return {};
  }
  return found;
}

void CudaStream::fetch(Operation& operation) {
  const std::size_t bytes = raw_bytes_of(operation);
  const bool in_place = operation.output == operation.input;
  Fetched fetched{.result = operation.output};
  try {
    {
      const cuda::Device::Current current(device_);
      fetched.input = pool_->take(bytes);
      fetched.output = in_place ? fetched.input : pool_->take(bytes);
    }
    copy(fetched.input, operation.input, bytes, false);
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
    fetched.plain.resize(2 * bytes);
    fetched.input = fetched.plain.data();
    fetched.output = in_place ? fetched.input : fetched.input + bytes;
  }
  operation.input = fetched.input;
  operation.output = fetched.output;
  operation.fetched = true;
  fetched_[&operation] = std::move(fetched);
}

void CudaStream::restore(Operation& operation) {
  const auto at = fetched_.find(&operation);
  const std::size_t bytes = raw_bytes_of(operation);
  Fetched fetched = std::move(at->second);
  fetched_.erase(at);
  operation.input = operation.output = fetched.result;
  operation.fetched = false;
  if (operation.status == Status::ok && lost_.empty()) {
    try {
      copy(fetched.result, fetched.output, bytes, true);
      const cuda::Device::Current current(device_);
      if (fetched.output != fetched.input) pool_->give(fetched.output, bytes, nullptr);
      pool_->give(fetched.input, bytes, nullptr);
      return;
    } catch (const DeviceFailure& failure) {
      lose(failure.what());
    }
  }
  interrupted_.push_back(std::move(fetched));  // transfers may still touch it
  if (operation.status != Status::ok) return;
  operation.status = Status::aborted;
  operation.text = lost_;
  operation.facts = std::make_unique<ErrorFacts>(ErrorFacts{
      .kind = ErrorKind::device, .tensor = operation.definition->name, .op = operation.definition->signature.kind});
}

}  // namespace casync
