#include "cuda/communicator.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include "casync/error.hpp"
#include "common/clock.hpp"

namespace casync::cuda {
namespace {

constexpr int kCallPatienceMs = 1000;  // with a call of NCCL that does not return

/// Not owned if whoever has it keeps it for too long.
std::unique_lock<std::mutex> lock_in_time(std::mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (int i = 0; i < kCallPatienceMs && !lock; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    [[maybe_unused]] const bool is_ours = lock.try_lock();
  }
  return lock;
}

}  // namespace

Communicator::Communicator(const Nccl& nccl, const Device& device, const NcclId& id, Rank rank, Rank size,
                           Nanoseconds patience, std::function<void()> ring)
    : nccl_(nccl),
      device_(device),
      ring_(ring),
      bell_(std::move(ring)),
      events_(device),
      watchdog_("NCCL", patience,
                {.look_again = [this] { return look_again(); }, .release = [this] { release(); }, .ring = ring_}) {
  NcclConfig config;
  config.blocking = 0;
  const NcclResult result =
      nccl_.ncclCommInitRankConfig(&comm_, static_cast<int>(size), id, static_cast<int>(rank), &config);
  if (result != kNcclSuccess && result != kNcclInProgress) {
    fail(detail::concat("ncclCommInitRankConfig failed with ", nccl_.text_of(result)));
  }
  watchdog_.wait_begins();
  stream_ = device_.make_stream();
}

Communicator::~Communicator() {
  bell_.silence();
  watchdog_.release("it is not needed any more");
  if (over_ == launched_) {
    device_.driver().cuStreamSynchronize(stream_);  // the last ring may still be on its way
  } else {
    bell_.abandon();
  }
  for (const EventHandle event : pending_) events_.give(event);
  device_.driver().cuStreamDestroy_v2(stream_);
}

void Communicator::advance() {
  const std::lock_guard lock(mutex_);
  check();
  try {
    advance_locked();
  } catch (const DeviceFailure& failure) {
    watchdog_.condemn(failure.what());
    throw;
  }
}

/// With the mutex.
void Communicator::check() {
  if (!watchdog_.is_condemned()) return;
  throw DeviceFailure(
      detail::concat("the devices' communicator (NCCL ", nccl_.version_text(), ") was aborted: ", watchdog_.why()));
}

void Communicator::fail(const std::string& why) {
  watchdog_.condemn(why);
  throw DeviceFailure(detail::concat("the devices' communicator (NCCL ", nccl_.version_text(), ") failed: ", why));
}

/// With the mutex.
void Communicator::advance_locked() {
  NcclResult state = kNcclSuccess;
  NcclResult result = nccl_.ncclCommGetAsyncError(comm_, &state);
  if (result == kNcclSuccess) result = state;
  if (result != kNcclSuccess && result != kNcclInProgress) fail(nccl_.text_of(result));
  if (result == kNcclSuccess && state_ != State::ready && state_ != State::finalized) {
    if (state_ == State::launching) {  // what was launched is on the stream only now
      const EventHandle event = events_.take();
      pending_.push_back(event);
      CASYNC_CUDA(device_.driver(), cuEventRecord, event, stream_);
      bell_.ring_after(device_.driver(), stream_);
    }
    state_ = state_ == State::finalizing ? State::finalized : State::ready;
    watch();
  }
  reap();
}

/// With the mutex. Counts the groups that are over.
void Communicator::reap() {
  const std::uint64_t before = over_;
  while (!pending_.empty() && events_.is_over(pending_.front())) {
    events_.give(pending_.front());
    pending_.pop_front();
    ++over_;
  }
  if (over_ != before) watch();
}

/// With the mutex. What is waited for is another thing now, or nothing.
void Communicator::watch() {
  const bool is_idle = state_ == State::ready || state_ == State::finalized;
  is_idle&& pending_.empty() ? watchdog_.wait_ends() : watchdog_.wait_begins();
}

void Communicator::launch(std::span<const Part> parts) {
  const std::lock_guard lock(mutex_);
  check();
  CASYNC_CHECK(is_ready() && !parts.empty());
  NcclResult result = nccl_.ncclGroupStart();
  for (const Part& part : parts) {
    if (result != kNcclSuccess) break;
    const auto peer = static_cast<int>(part.peer);
    result = part.is_send ? nccl_.ncclSend(part.memory, part.bytes, kNcclBytes, peer, comm_, stream_)
                          : nccl_.ncclRecv(part.memory, part.bytes, kNcclBytes, peer, comm_, stream_);
  }
  const NcclResult end = nccl_.ncclGroupEnd();
  if (result == kNcclSuccess) result = end;
  if (result != kNcclSuccess && result != kNcclInProgress) {
    fail(detail::concat("a group of ", parts.size(), " was not launched: ", nccl_.text_of(result)));
  }
  ++launched_;
  state_ = State::launching;
  watch();
}

/// On the watchdog's thread. Whoever makes progress may have been elsewhere for long.
bool Communicator::look_again() {
  const auto lock = lock_in_time(mutex_);
  if (!lock || watchdog_.is_condemned()) return true;
  const Device::Current current(device_);
  const std::uint64_t before = over_;
  const State was = state_;
  try {
    advance_locked();
  } catch (const DeviceFailure&) {
    return true;
  }
  return over_ == before && state_ == was;
}

/// On a thread of its own. Nothing else is called from now on, but what has not returned yet.
void Communicator::release() {
  lock_in_time(mutex_);  // who was in a call is out of it then, and sees that it is condemned
  if (comm_ == nullptr) return;
  const Device::Current current(device_);
  if (state_ == State::finalized) {
    nccl_.ncclCommDestroy(comm_);
  } else {
    nccl_.ncclCommAbort(comm_);
  }
}

void Communicator::finalize() {
  const std::lock_guard lock(mutex_);
  check();
  const NcclResult result = nccl_.ncclCommFinalize(comm_);
  if (result != kNcclSuccess && result != kNcclInProgress) fail(nccl_.text_of(result));
  state_ = State::finalizing;
  watch();
}

void Communicator::end(Nanoseconds patience) {
  const Nanoseconds deadline = steady_now() + patience;
  const auto until = [&](const auto& condition) {
    while (!condition()) {
      if (steady_now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      advance();
    }
    return true;
  };
  try {
    if (until([&] { return is_ready() && over_ == launched_; })) {
      finalize();
      until([&] { return state_ == State::finalized; });
    }
  } catch (const DeviceFailure&) {  // it was condemned, and is aborted
  }
  watchdog_.release("its session has ended");
}

}  // namespace casync::cuda
