#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "casync/metrics.hpp"
#include "engine/engine.hpp"
#include "executor/memory/tensor_sizes.hpp"

namespace casync {

/// A number that one thread at a time writes and any thread reads: plain loads and stores of the processor.
class Count {
 public:
  void add(std::uint64_t more) { set(get() + more); }
  void set(std::uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// A Histogram in the making, under the same rule.
class HistogramCount {
 public:
  void add(Nanoseconds time);
  Histogram get() const;

 private:
  std::array<Count, Histogram::kBounds + 1> counts_;
  Count sum_;
};

/// The counters behind Metrics that the Driver keeps, of every session, always. The thread that drives the Engine
/// writes; any thread may take a snapshot meanwhile, without waiting for it. Nothing is allocated but for a codec, and
/// for more operations at once, than there were before.
class Counters {
 public:
  explicit Counters(std::size_t members) : members_(members), lateness_(members) {}

  void submitted() { submitted_.add(1); }
  void begun(std::uint32_t instance, const TaskGraph& graph);
  /// `instance` has ended well, and its operation had a tensor of `bytes`.
  void ended(std::uint32_t instance, std::uint64_t bytes);
  void failed() { failed_.add(1); }
  void sent(std::uint32_t instance, std::uint32_t peer, MessageBytes bytes) { add(runs_[instance]->sent[peer], bytes); }
  void received(std::uint32_t instance, std::uint32_t peer, MessageBytes bytes) {
    add(runs_[instance]->received[peer], bytes);
  }
  void queued() { queued_.add(1); }
  /// A task that was queued has come back, after `time` at work.
  void computed(std::uint32_t instance, Primitive primitive, Nanoseconds time);
  void flows() { flowing_.add(1); }
  void flowed() { flowed_.add(1); }
  /// What the parts count by themselves, at the end of each turn.
  void look(const Engine& engine, const Memory& memory, const TransportCounters& transport);

  /// All but steps and how long the program waited.
  void read(Metrics& metrics) const;

 private:
  struct Exchanged {
    Count messages, raw_bytes, wire_bytes;
    Traffic get() const { return {messages.get(), raw_bytes.get(), wire_bytes.get()}; }
  };
  struct Computed {
    Count tasks, time;
    Work get() const { return {tasks.get(), static_cast<Nanoseconds>(time.get())}; }
  };
  struct Row {  // of one codec
    Row(std::string spec, std::size_t members) : codec(std::move(spec)), sent(members), received(members) {}
    const std::string codec;
    Count operations, tensor_bytes;
    std::array<Computed, 3> computed;  // encode, decode, merge
    std::vector<Exchanged> sent, received;
  };
  struct Late {
    Count reports, last, time;
  };
  static void add(Exchanged& to, MessageBytes bytes) {
    to.messages.add(1);
    to.raw_bytes.add(bytes.raw);
    to.wire_bytes.add(bytes.wire);
  }
  Row& row_of(const std::string& codec);

  std::size_t members_;
  mutable std::mutex growth_;                   // guards the length of rows_, which the writer alone changes
  std::deque<Row> rows_;                        // stable addresses
  std::vector<Row*> runs_;                      // by instance
  std::shared_ptr<const Codec> codec_of_last_;  // begun; most often the next one has it too
  Row* row_of_last_ = nullptr;
  Count submitted_, ended_, failed_, queued_, computed_, flowing_, flowed_;
  Count partitions_, sends_;
  Count pool_capacity_, pool_used_, pool_peak_, pool_held_;
  Count sent_bytes_, received_bytes_, sent_messages_, received_messages_;
  std::vector<Late> lateness_;
  std::atomic<bool> keeps_lateness_{false};
};

}  // namespace casync
