#include "executor/real/cuda_stream.hpp"

#include <new>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"
#include "executor/sizes.hpp"

namespace casync {
namespace {

using codec::cuda::DeviceCodec;
using codec::cuda::SegmentReport;

cuda::DevicePointer address(const void* of) { return reinterpret_cast<cuda::DevicePointer>(of); }

}  // namespace

std::byte* CudaStream::Pinned::allocate(std::size_t bytes) {
  const cuda::Device::Current current(device_);
  void* memory = nullptr;
  CASYNC_CUDA(device_.driver(), cuMemHostAlloc, &memory, bytes, cuda::kPortable);
  return static_cast<std::byte*>(memory);
}

void CudaStream::Pinned::free(std::byte* memory) {
  const cuda::Device::Current current(device_);
  device_.driver().cuMemFreeHost(memory);
}

/// Memory of the device that outlives no stream.
class CudaStream::Floats final : public FarFloats {
 public:
  Floats(CudaStream& of, std::span<const float> values) : of_(of), size_(values.size()) {
    if (size_ == 0) return;
    const cuda::Device::Current current(of_.device_);
    CASYNC_CUDA(of_.driver_, cuMemAlloc_v2, &memory_, values.size_bytes());
    CASYNC_CUDA(of_.driver_, cuMemcpyHtoD_v2, memory_, values.data(), values.size_bytes());
  }
  ~Floats() override {
    if (size_ == 0) return;
    const cuda::Device::Current current(of_.device_);
    of_.driver_.cuMemFree_v2(memory_);
  }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

  float* data() override { return reinterpret_cast<float*>(memory_); }
  std::size_t size() const override { return size_; }
  FloatArray copy() const override {
    FloatArray values(size_);
    if (size_ > 0) of_.copy(values.data(), reinterpret_cast<const void*>(memory_), size_ * sizeof(float), false);
    return values;
  }

 private:
  CudaStream& of_;
  std::size_t size_;
  cuda::DevicePointer memory_ = 0;
};

CudaStream::CudaStream(int device, const std::string& common, std::function<void()> ring)
    : driver_(cuda::driver()), device_(driver_, device), bell_(std::move(ring)), slots_(device_) {
  const cuda::Device::Current current(device_);
  stream_ = device_.make_stream();
  events_ = std::make_unique<cuda::Events>(device_);
  pool_ = std::make_unique<cuda::PinnedPool>(device_, *events_);
  arena_ = std::make_unique<cuda::Arena>(device_, stream_);
  common_ = std::make_unique<codec::cuda::CommonKernels>(device_, common);
}

CudaStream::~CudaStream() {
  quiesce();
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

void CudaStream::quiesce() {
  try {
    const cuda::Device::Current current(device_);
    driver_.cuStreamSynchronize(stream_);
  } catch (const DeviceFailure&) {
  }
  bell_.silence();
}

void CudaStream::add(const std::string& spec, const std::string& code) {
  const std::shared_ptr<const Codec> codec = make_codec(spec);
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

bool CudaStream::carries(const Template& shape, const Signature& signature) const {
  return signature.kind == OpKind::allreduce && shape.sends_slots_only && codec_of(*shape.codec) != nullptr &&
         DeviceCodec::carries(*shape.codec, signature.shape, signature.dtype, signature.op);
}

std::string CudaStream::lose(const std::string& why) {
  if (lost_.empty()) lost_ = detail::concat("device ", device_.ordinal(), " failed: ", why);
  return lost_;
}

/// What of it went wrong; empty: nothing did.
std::string CudaStream::launch(Job& job, SegmentReport* report) {
  if (!lost_.empty()) {
    job.device_failed = true;
    return lost_;
  }
  try {
    if (job.on_device) {
      codec_of(*job.codec)->launch(job.segment, *arena_, stream_, *common_, report);
      return {};
    }
    CASYNC_CUDA(driver_, cuStreamSynchronize, stream_);  // it may read what a job before it writes
  } catch (const DeviceFailure& failure) {
    job.device_failed = true;
    return lose(failure.what());
  } catch (const CorruptPayload& error) {
    job.refused = 0;
    return error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
  return job.run();
}

void CudaStream::run(std::vector<std::unique_ptr<Job>> jobs) {
  Batch batch{.jobs = std::move(jobs)};
  batch.launched = steady_now();
  try {
    const cuda::Device::Current current(device_);
    arena_->rewind();
    batch.reports = pool_->take(batch.jobs.size() * sizeof(SegmentReport));
    auto* report = reinterpret_cast<SegmentReport*>(batch.reports);
    for (const auto& job : batch.jobs) batch.errors.push_back(launch(*job, new (report++) SegmentReport));
    batch.over = events_->take();
    CASYNC_CUDA(driver_, cuEventRecord, batch.over, stream_);
    bell_.ring_after(driver_, stream_);
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
  }
  batch.errors.resize(batch.jobs.size());
  launched_.push_back(std::move(batch));
}

/// The host looks at each of the sources, of which the program's are on the device.
void CudaStream::blame(Job& job) {
  const std::vector<Source> there = job.sources;
  std::vector<std::vector<std::byte>> copies;
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (!job.is_users[i] || there[i].data == job.segment.raw_out) continue;  // that one is no more
    copies.emplace_back(there[i].bytes);
    copy(copies.back().data(), there[i].data, there[i].bytes, false);
    job.sources[i].data = copies.back().data();
  }
  job.find_nonfinite();
  job.sources = there;
}

/// What the device says of a job that it has computed.
void CudaStream::conclude(Job& job, std::string& error, const SegmentReport& report) {
  if (!error.empty() || !job.on_device) return;
  job.segment.payload_bytes = static_cast<std::size_t>(report.payload_bytes);
  job.segment.nonfinite = report.nonfinite != 0;
  if (job.segment.nonfinite) blame(job);
  if (report.overflow != 0) {
    error = detail::concat(job.codec->info().spec, ": a unit needs more than its bound: correct `bound` in the file");
  } else if (report.refused >= 0) {
    job.refused = static_cast<std::size_t>(report.refused);
    error = detail::concat(job.codec->info().spec, ": decode refuses the payload of elements [",
                           job.segment.range.begin, ", ", job.segment.range.end, ")");
  }
}

std::optional<Nanoseconds> CudaStream::collect(Workers::Finished& finished) {
  if (launched_.empty()) return std::nullopt;
  try {
    const cuda::Device::Current current(device_);
    while (!launched_.empty() && lost_.empty() && events_->is_over(launched_.front().over)) {
      Batch& batch = launched_.front();
      const Nanoseconds each = (steady_now() - batch.launched) / static_cast<Nanoseconds>(batch.jobs.size());
      const auto* report = reinterpret_cast<const SegmentReport*>(batch.reports);
      for (std::size_t i = 0; i < batch.jobs.size(); ++i) {
        batch.jobs[i]->time = each;
        conclude(*batch.jobs[i], batch.errors[i], *report++);
        finished.emplace_back(std::move(batch.jobs[i]), std::move(batch.errors[i]));
      }
      pool_->give(batch.reports, batch.jobs.size() * sizeof(SegmentReport), batch.over);
      launched_.pop_front();
    }
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
  }
  if (lost_.empty()) return launched_.empty() ? std::nullopt : std::optional(kLook);
  for (Batch& batch : launched_) {
    for (auto& job : batch.jobs) {
      job->device_failed = true;
      finished.emplace_back(std::move(job), lost_);
    }
  }
  launched_.clear();
  return std::nullopt;
}

std::unique_ptr<FarFloats> CudaStream::send(std::span<const float> values) {
  return std::make_unique<Floats>(*this, values);
}

void CudaStream::copy(void* to, const void* from, std::size_t bytes, bool to_device) {
  const cuda::Device::Current current(device_);
  CASYNC_CUDA(driver_, cuStreamSynchronize, stream_);
  if (bytes == 0) return;
  if (to_device) {
    CASYNC_CUDA(driver_, cuMemcpyHtoD_v2, address(to), from, bytes);
  } else {
    CASYNC_CUDA(driver_, cuMemcpyDtoH_v2, to, address(from), bytes);
  }
}

void CudaStream::fetch(Operation& operation) {
  const std::size_t bytes = raw_bytes_of(operation);
  const bool in_place = operation.output == operation.input;
  Fetched fetched{.result = operation.output};
  {
    const cuda::Device::Current current(device_);
    fetched.input = pool_->take(bytes);
    fetched.output = in_place ? fetched.input : pool_->take(bytes);
  }
  copy(fetched.input, operation.input, bytes, false);
  operation.input = fetched.input;
  operation.output = fetched.output;
  operation.fetched = true;
  fetched_[&operation] = fetched;
}

void CudaStream::restore(Operation& operation) {
  const auto at = fetched_.find(&operation);
  const std::size_t bytes = raw_bytes_of(operation);
  if (operation.status == Status::ok) {
    copy(at->second.result, operation.output, bytes, true);
    const cuda::Device::Current current(device_);
    if (at->second.output != at->second.input) pool_->give(at->second.output, bytes, nullptr);
    pool_->give(at->second.input, bytes, nullptr);
  }  // else transfers may still touch it, until the process ends
  fetched_.erase(at);
}

}  // namespace casync
