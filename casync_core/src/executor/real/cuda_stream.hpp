#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/cuda/device_codec.hpp"
#include "cuda/arena.hpp"
#include "cuda/bell.hpp"
#include "cuda/device.hpp"
#include "cuda/pinned.hpp"
#include "executor/run/workers.hpp"

namespace casync {

/// A stream of a CUDA device beside those of the program, for the codecs whose device code it was given.
///
/// Residuals are memory of the device, payloads are pinned memory of the host. Jobs of a batch do not depend on each
/// other, so those of one codec that take the same steps are launched together. Nobody waits for the stream in a step:
/// what is over is found when `collect` looks, for which the stream rings. What is rare waits for it: a residual that
/// comes or goes, what is fetched, and scratch memory that grows. The first error of the driver loses the device: every
/// job that was launched fails, and so does every other one.
///
/// With the progress role, but for `add`.
class CudaStream final : public Stream {
 public:
  static constexpr Nanoseconds kLook = 1'000'000;         ///< after an error nothing rings
  static constexpr Nanoseconds kEndTime = 5'000'000'000;  ///< for what is launched at a shutdown

  /// `common`: what CommonKernels takes. `ring` is called on any thread. Throws DeviceFailure.
  CudaStream(int device, const std::string& common, std::function<void()> ring);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  /// Any thread. `code`: the device code of the codec that `spec` names, compiled for the device; empty for one that
  /// needs none of its own. Throws DeviceFailure, and InvalidArgument for a codec that no device computes.
  void add(const std::string& spec, const std::string& code);

  void run(std::vector<std::unique_ptr<Job>> batch) override;
  bool supports(const TaskGraph& graph, const Signature& signature, bool by_lane) const override;
  Allocator& shared() override { return slots_; }
  Allocator& own() override { return memory_; }
  std::unique_ptr<FarFloats> send(std::span<const float> values, bool must) override;
  const std::string& failure() const override { return lost_; }
  std::vector<std::byte> look(const void* data, std::size_t bytes) override;
  void fetch(Operation& operation) override;
  void restore(Operation& operation) override;

  /// Moves what is over to the end of `finished`. In how long it is to be called again at the latest.
  std::optional<Nanoseconds> collect(Workers::Finished& finished);
  /// Waits until nothing runs any more. What does not end in time loses the device: nobody waits for that again, and
  /// what it may touch is never freed.
  void quiesce();

 private:
  class Floats;
  struct Batch {
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::string> errors{};  ///< of jobs that were not launched
    std::byte* reports = nullptr;
    std::vector<std::pair<std::byte*, std::size_t>> arguments{};  ///< of launches, in pinned memory
    cuda::EventHandle over = nullptr;
    Nanoseconds launched = 0;
  };
  struct Fetched {
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    void* result = nullptr;          ///< of the program
    std::vector<std::byte> plain{};  ///< of a device that is lost: what it works on instead
  };
  /// Pinned memory; plain memory of a device that is lost by then.
  class Pinned final : public Allocator {
   public:
    explicit Pinned(CudaStream& of) : of_(of) {}
    std::byte* allocate(std::size_t bytes) override;
    void free(std::byte* memory) override;

   private:
    CudaStream& of_;
    std::set<std::byte*> plain_;
  };

  /// Memory of the device; none of one that is lost by then.
  class Own final : public Allocator {
   public:
    explicit Own(CudaStream& of) : of_(of) {}
    std::byte* allocate(std::size_t bytes) override;
    void free(std::byte* memory) override;

   private:
    CudaStream& of_;
  };

  codec::cuda::DeviceCodec* codec_of(const Codec& codec) const;
  template <typename Work>
  std::string attempt(const Work& work);
  static codec::cuda::DeviceJob device_job(const Batch& batch, std::size_t job);
  void check(const Job& job) const;
  void launch(Batch& batch);
  void launch_together(Batch& batch, codec::cuda::DeviceCodec& codec, std::span<const std::size_t> jobs);
  void launch_alone(Batch& batch, std::size_t job);
  void start(Batch& batch, codec::cuda::Launches launches);
  void conclude(Job& job, std::string& error, const codec::cuda::SegmentReport& report);
  void blame(Job& job);
  static std::size_t misfit(const Job& job);
  bool ends_in_time();
  std::string lose(const std::string& why);
  void copy(void* to, const void* from, std::size_t bytes, bool to_device);

  const cuda::Driver& driver_;
  cuda::Device device_;
  cuda::Stream stream_ = nullptr;
  cuda::Bell bell_;
  std::unique_ptr<cuda::Events> events_;
  std::unique_ptr<cuda::PinnedPool> pool_;
  std::unique_ptr<cuda::Arena> arena_;
  std::unique_ptr<codec::cuda::CommonKernels> common_;
  Pinned slots_;
  Own memory_;
  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<codec::cuda::DeviceCodec>> codecs_;  // by canonical spec; with the mutex
  std::deque<Batch> launched_;
  std::map<const Operation*, Fetched> fetched_;
  std::vector<Fetched> interrupted_;
  bool has_failed_to_end_ = false;
  bool is_stuck_ = false;
  std::string lost_;  // why; empty: the device is well
};

}  // namespace casync
