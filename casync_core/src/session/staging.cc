#include "session/staging.hpp"

#include <utility>

#include "casync/error.hpp"
#include "executor/memory/tensor_sizes.hpp"

namespace casync {
namespace {

cuda::DevicePointer address(const void* of) { return reinterpret_cast<cuda::DevicePointer>(of); }

}  // namespace

Staging::Staging(int device, Rank self, Callbacks callbacks)
    : driver_(cuda::driver()),
      device_(driver_, device),
      self_(self),
      callbacks_(std::move(callbacks)),
      bell_(callbacks_.ring) {
  const cuda::Device::Current current(device_);
  events_ = std::make_unique<cuda::Events>(device_);
  pool_ = std::make_unique<cuda::PinnedPool>(device_, *events_);
  inward_ = device_.make_stream();
  outward_ = device_.make_stream();
}

Staging::~Staging() {
  if (is_abandoned_) {  // a copy may still write, and ring
    bell_.abandon();
    [[maybe_unused]] const auto* const pool = pool_.release();
    [[maybe_unused]] const auto* const events = events_.release();
    return;
  }
  try {
    const cuda::Device::Current current(device_);
    for (const cuda::Stream stream : {inward_, outward_}) driver_.cuStreamDestroy_v2(stream);
    for (const auto& staged : touched_) free(*staged, staged->left);
    pool_.reset();
    events_.reset();
  } catch (const DeviceFailure&) {  // the device is lost, and with it what it had
  }
}

void Staging::refuse_capture(cuda::Stream stream) const {
  int capturing = 0;
  CASYNC_CUDA(driver_, cuStreamIsCapturing, stream, &capturing);
  if (capturing == 0) return;
  throw InvalidArgument(
      "the stream is being captured into a CUDA graph, which cannot hold what other ranks do: submit an operation, and "
      "wait for it, before the capture or after it");
}

std::unique_ptr<Staged> Staging::copy_in(Operation& operation, void* stream, std::size_t output_bytes) {
  if (lost_) throw DeviceFailure(detail::concat(why_, ". The session is over: start the job again"));
  const cuda::Device::Current current(device_);
  const auto program = static_cast<cuda::Stream>(stream);
  refuse_capture(program);
  auto staged = std::make_unique<Staged>();
  staged->input_bytes = raw_bytes_of(operation);
  staged->output_bytes = output_bytes;
  staged->target = address(operation.output);
  bool has_begun = false;
  try {
    staged->input = pool_->take(staged->input_bytes);
    staged->output = staged->input;
    if (operation.output != operation.input) {
      staged->output = nullptr;
      staged->output = pool_->take(output_bytes);
    }
    staged->arrived = events_->take();
    const std::lock_guard lock(mutex_);
    // At first the event says that the program's stream is ready; a wait holds to what it was recorded after by then.
    CASYNC_CUDA(driver_, cuEventRecord, staged->arrived, program);
    CASYNC_CUDA(driver_, cuStreamWaitEvent, inward_, staged->arrived, 0);
    has_begun = true;
    if (staged->input_bytes > 0) {
      CASYNC_CUDA(driver_, cuMemcpyDtoHAsync_v2, staged->input, address(operation.input), staged->input_bytes, inward_);
    }
    CASYNC_CUDA(driver_, cuEventRecord, staged->arrived, inward_);
  } catch (...) {
    give_back(std::move(staged), has_begun);
    throw;
  }
  operation.input = staged->input;
  operation.output = staged->output;
  operation.staged = staged.get();
  return staged;
}

std::unique_ptr<Staged> Staging::await(Operation& operation, void* stream) {
  if (lost_) throw DeviceFailure(detail::concat(why_, ". The session is over: start the job again"));
  const cuda::Device::Current current(device_);
  const auto program = static_cast<cuda::Stream>(stream);
  refuse_capture(program);
  auto staged = std::make_unique<Staged>();
  staged->arrived = events_->take();
  try {
    const std::lock_guard lock(mutex_);
    CASYNC_CUDA(driver_, cuEventRecord, staged->arrived, program);
    CASYNC_CUDA(driver_, cuStreamWaitEvent, inward_, staged->arrived, 0);  // where the bell is
  } catch (...) {
    give_back(std::move(staged), false);
    throw;
  }
  operation.on_stream = true;
  operation.staged = staged.get();
  return staged;
}

void Staging::expect(std::uint32_t registration, Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    arriving_.push_back({registration, &operation});
  }
  if (operation.staged == nullptr) return callbacks_.ring();
  try {
    const cuda::Device::Current current(device_);
    bell_.ring_after(driver_, inward_);
  } catch (const DeviceFailure&) {  // `look` comes to the operation all the same, and says so
  }
}

bool Staging::expects_something() {
  const std::lock_guard lock(mutex_);
  return !arriving_.empty();
}

void Staging::order_after(const Staged& staged, void* stream) {
  if (staged.left == nullptr) return;
  const cuda::Device::Current current(device_);
  const auto program = static_cast<cuda::Stream>(stream);
  refuse_capture(program);
  CASYNC_CUDA(driver_, cuStreamWaitEvent, program, staged.left, 0);
}

void Staging::free(Staged& staged, cuda::EventHandle after) {
  if (!staged.in_place()) pool_->give(staged.input, staged.input_bytes, nullptr);
  if (staged.output != nullptr) {
    pool_->give(staged.output, staged.in_place() ? staged.input_bytes : staged.output_bytes, after);
  } else if (after != nullptr) {
    events_->give(after);
  }
  if (staged.arrived != nullptr) events_->give(staged.arrived);
}

void Staging::give_back(std::unique_ptr<Staged> staged, bool touched) {
  if (touched || lost_) {
    const std::lock_guard lock(mutex_);
    touched_.push_back(std::move(staged));
  } else {
    free(*staged, staged->left);
  }
}

/// Whether the copy of an operation that arrives is over.
bool Staging::is_over(const Operation& operation) const {
  return operation.staged == nullptr || events_->is_over(operation.staged->arrived);
}

std::optional<Nanoseconds> Staging::look() {
  std::deque<Expected> arrived;
  std::deque<Operation*> left;
  std::optional<std::string> failure;
  bool waits = false;
  {
    const std::lock_guard lock(mutex_);
    if (arriving_.empty() && leaving_.empty()) return std::nullopt;
    try {
      const cuda::Device::Current current(device_);
      while (!arriving_.empty() && is_over(*arriving_.front().operation)) {
        arrived.push_back(arriving_.front());
        arriving_.pop_front();
      }
      while (!leaving_.empty() && events_->is_over(leaving_.front()->staged->left)) {
        left.push_back(leaving_.front());
        leaving_.pop_front();
      }
    } catch (const DeviceFailure& failed) {
      failure = failed.what();
    }
    waits = !arriving_.empty() || !leaving_.empty();
  }
  for (const auto& [registration, operation] : arrived) callbacks_.arrived(registration, *operation);
  for (Operation* const operation : left) callbacks_.left(*operation);
  if (failure) lose(*failure);
  return waits && !failure ? std::optional(kLook) : std::nullopt;
}

bool Staging::copy_out(Operation& operation) {
  Staged& staged = *operation.staged;
  if (operation.status == Status::aborted && lost_) fail(operation);
  if (operation.on_stream) return true;  // it is there
  if (operation.status != Status::ok || staged.output == nullptr) return true;
  try {
    const cuda::Device::Current current(device_);
    staged.left = events_->take();
    CASYNC_CUDA(driver_, cuMemcpyHtoDAsync_v2, staged.target, staged.output, staged.output_bytes, outward_);
    CASYNC_CUDA(driver_, cuEventRecord, staged.left, outward_);
    if (!operation.completion) return true;
    leaving_.push_back(&operation);
    bell_.ring_after(driver_, outward_);
    return false;
  } catch (const DeviceFailure& failure) {
    lose(failure.what());
    fail(operation);
    return true;
  }
}

void Staging::fail(Operation& operation) const {
  operation.status = Status::aborted;
  operation.text = why_;
  operation.facts = std::make_unique<ErrorFacts>(ErrorFacts{.kind = ErrorKind::device,
                                                            .tensor = operation.definition->name,
                                                            .op = operation.definition->signature.kind,
                                                            .peer = self_});
}

void Staging::lose(const std::string& why) {
  if (!lost_) {
    why_ = detail::concat("device ", device(), " failed: ", why);
    lost_ = true;
    callbacks_.failed(why_);  // before what it ends: nothing of that is to begin
  }
  std::deque<Expected> arriving;
  {
    const std::lock_guard lock(mutex_);
    arriving.swap(arriving_);
  }
  for (const auto& [registration, operation] : arriving) callbacks_.arrived(registration, *operation);
  for (Operation* const operation : std::exchange(leaving_, {})) {
    fail(*operation);
    callbacks_.left(*operation);
  }
}

void Staging::abandon(const std::string& why) {
  is_abandoned_ = true;
  lose(why);
}

void Staging::quiesce() {
  if (!is_abandoned_) {
    try {
      const cuda::Device::Current current(device_);
      for (const cuda::Stream stream : {inward_, outward_}) CASYNC_CUDA(driver_, cuStreamSynchronize, stream);
    } catch (const DeviceFailure&) {  // after an error nothing rings
    }
  }
  bell_.silence();
}

}  // namespace casync
