#include "session/device_operations.hpp"

#include <thread>

#include "casync/error.hpp"
#include "collectives/collectives.hpp"
#include "executor/memory/tensor_sizes.hpp"
#include "executor/real/device_trial.hpp"

namespace casync {

/// The one way to this device, which the first operation on it makes.
Staging& DeviceOperations::staging_for(int device) {
  if (staging_ == nullptr) {
    const Staging::Callbacks callbacks{
        .arrived = [this](std::uint32_t registration,
                          Operation& operation) { executor_->submit(registration, &operation); },
        .left = callbacks_.finished,
        .failed = [this](const std::string& why) { executor_->abort(why); },
        .ring = [this] { executor_->wake(); }};
    staging_ = std::make_unique<Staging>(device, context_.transport.rank(), callbacks);
    in_use_.store(staging_.get(), std::memory_order_release);
  }
  if (staging_->device() == device) return *staging_;
  throw InvalidArgument(detail::concat(
      "it is on device ", device, ", and what this process submitted before on device ", staging_->device(),
      ": a process drives one device. Choose it before tensors are made: torch.cuda.set_device(hvd.local_rank())"));
}

void DeviceOperations::stage(HandleTable::Entry& entry, const DeviceStream& where) {
  Operation& operation = *entry.operation;
  const Signature& signature = operation.definition->signature;
  if (const Definitions::ByPlan& known = context_.definitions[entry.registration].by_plan; known.on_stream) {
    entry.staged = staging_for(where.device).await(operation, where.stream);
    operation.by_lane = known.by_lane;
    return;
  }
  std::size_t result = operation.output == nullptr ? 0 : raw_bytes_of(operation);
  if (signature.kind == OpKind::reducescatter) {
    const Range mine = scattered_to(context_.transport.rank(), context_.transport.size(), signature.shape);
    result = static_cast<std::size_t>(mine.size()) * size_of(signature.dtype);
  }
  entry.staged = staging_for(where.device).copy_in(operation, where.stream, result);
}

void DeviceOperations::add_code(int device, const std::string& common, const std::string& spec,
                                const std::string& code) {
  const std::lock_guard alone(adding_);
  std::unique_lock lock(context_.mutex);
  staging_for(device);
  CudaStream* there = stream_;
  const bool is_weighed = callbacks_.weighs(spec);
  lock.unlock();  // the executor's role comes before the mutex
  if (is_weighed) {
    const DeviceTrial trial(device, common, spec, code);
    executor_->inspect([&](Driver&, const Engine&) {
      for (const Measurement& cost : trial.results()) callbacks_.measured(cost);
    });
  }
  if (there == nullptr) {
    const LaneWorld world{context_.transport.rank(), context_.transport.size()};
    auto made = std::make_unique<CudaStream>(device, common, [this] { executor_->wake(); });
    there = made.get();
    executor_->add_stream(
        std::move(made), make_lane(lane_, device, world, context_.options.nccl_library, [this] { executor_->wake(); }));
  }
  there->add(spec, code);
  lock.lock();
  stream_ = there;
  context_.definitions.for_each([](std::uint32_t /*number*/, Definitions::One& one) {
    one.by_plan = {};  // more is computed there now
  });
}

/// Whether the operation's next run is computed on the device. The plan is known by now; a run for which it changes
/// afterwards is fetched.
void DeviceOperations::look_at_plan(const Operation& operation) {
  const std::lock_guard lock(context_.mutex);
  const std::uint32_t registration = context_.handles[operation.index].registration;
  std::shared_ptr<const TaskGraph> graph = stream_ == nullptr ? nullptr : executor_->graph_of(registration);
  Definitions::ByPlan& known = context_.definitions[registration].by_plan;
  const bool has_lane = executor_->has_lane();
  if (graph == nullptr || (graph == known.graph && has_lane == known.had_lane)) return;
  const Signature& signature = operation.definition->signature;
  known.had_lane = has_lane;
  known.by_lane = has_lane && executor_->is_for_lane(*graph) && stream_->supports(*graph, signature, true);
  known.on_stream = known.by_lane || stream_->supports(*graph, signature, false);
  known.graph = std::move(graph);
}

bool DeviceOperations::ended(Operation& operation) {
  look_at_plan(operation);
  return staging_->copy_out(operation);
}

std::optional<Nanoseconds> DeviceOperations::look() {
  Staging* const device = in_use_.load(std::memory_order_acquire);
  if (device == nullptr) return std::nullopt;
  tell_of_lane();
  return device->look();
}

/// That devices cannot send to each other, once.
void DeviceOperations::tell_of_lane() {
  if (has_told_of_lane_ || executor_->lane_refusal().empty()) return;
  has_told_of_lane_ = true;
  context_.log(
      {.level = LogLevel::info, .text = detail::concat("devices send through the host: ", executor_->lane_refusal())});
}

void DeviceOperations::await_inputs() {
  if (staging_ == nullptr) return;
  const Nanoseconds deadline = executor_->now() + kCopyTime;
  while (staging_->expects_something()) {
    if (executor_->now() > deadline) {
      return executor_->inspect(
          [this](Driver&, const Engine&) { staging_->abandon("a copy to the host does not end"); });
    }
    executor_->poll();
    std::this_thread::yield();
  }
}

void DeviceOperations::await_results() {
  if (staging_ == nullptr) return;
  const Nanoseconds deadline = executor_->now() + kCopyTime;
  while (staging_->look()) {
    if (executor_->now() > deadline) staging_->abandon("a copy to the device does not end");
    std::this_thread::yield();
  }
  staging_->quiesce();
}

}  // namespace casync
