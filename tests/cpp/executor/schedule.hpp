#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/virtual/world.hpp"

namespace casync::test {

/// What the schedules are drawn from. Weights are by repetition; print() shows all of it.
struct Distributions {
  std::vector<int> members{1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 7, 8, 9, 11, 13, 16};
  int tensors_most = 12;
  int steps_most = 4;
  /// Elements of a gradient: nothing, one, odd, around min_numel, one block and a bit, several blocks.
  std::vector<std::int64_t> numel{0, 1, 2, 3, 7, 64, 255, 1001, 4095, 4096, 4097, 9000, 16384, 16385, 33000, 70001};
  std::vector<std::int64_t> cols{1, 1, 1, 3, 64, 257, 4096, 5000};
  std::int64_t min_numel = 4096;     ///< below: uncompressed, unless a rule says otherwise (one in six)
  std::int64_t work_most = 900'000;  ///< elements over all ranks, gradients and steps
  std::vector<std::string> codecs{"none",
                                  "none",
                                  "none",
                                  "fp16",
                                  "bf16",
                                  "onebit",
                                  "onebit",
                                  "terngrad(bits=2)",
                                  "terngrad(bits=8)",
                                  "test_topk(ratio=0.03)",
                                  "test_tworound",
                                  "test_state(gather=0)",
                                  "test_state(gather=1)",
                                  "test_lowrank(start=0)",
                                  "tbq",
                                  "graddrop",
                                  "dgc(ratio=0.03)",
                                  "dgc(warmup_steps=1)",
                                  "adacomp",
                                  "threelc",
                                  "powersgd(rank=2)",
                                  "int8",
                                  "int4",
                                  "fp8",
                                  "qsgd(bits=2)",
                                  "minmax_uint8",
                                  "efsignsgd",
                                  "topk(ratio=0.03)",
                                  "randomk(ratio=0.1)",
                                  "topkc",
                                  "thc",
                                  "ternary",
                                  "sparseloco",
                                  "rotated",
                                  "lossless"};
  std::vector<DType> compressed{DType::float32, DType::float32,  DType::float32,
                                DType::float16, DType::bfloat16, DType::float64};
  std::vector<DType> uncompressed{DType::float32,  DType::float32, DType::float32, DType::float16,
                                  DType::bfloat16, DType::float64, DType::int8,    DType::int32,
                                  DType::int64,    DType::uint8,   DType::boolean, DType::uint16};
  std::vector<std::size_t> pool_bytes{1, 2000, 64 << 10, 1 << 20, 24 << 20};
  std::vector<std::size_t> inline_bytes{64, 1000, 12 << 10};
  std::vector<std::size_t> eager_bytes{0, 300, 300, 3000, 1 << 20};
  std::vector<Nanoseconds> ready_interval{0, 0, 100'000, 5'000'000};
  std::vector<std::size_t> at_once_bytes{0, 4096, 64 << 10};
  std::vector<std::size_t> batch_bytes{1, 64 << 10, 1 << 20};
  std::vector<double> bytes_per_second{1.25e6, 1.25e7, 1.25e8, 1.25e9};
  std::vector<Nanoseconds> latency{0, 50'000, 3'000'000};
  std::vector<Nanoseconds> jitter{0, 10'000, 1'000'000, 20'000'000};
  std::vector<Nanoseconds> notice{0, 20'000, 2'000'000};
  std::vector<Nanoseconds> spread{0, 100'000, 30'000'000};  ///< over which a rank's submissions of a step are scattered
  std::vector<Nanoseconds> late{0, 0, 0, 50'000'000, 3'000'000'000};  ///< of one rank per step
  // Shares, in per cent.
  int small = 15;       ///< schedules of nothing but tiny gradients, sent directly
  int other_kind = 12;  ///< tensors that are an allgather, a broadcast, a barrier or an alltoall
  int scattered = 12;   ///< sums and means that leave each rank with its own rows only, of codecs that can
  int adasum = 10;      ///< floats, uncompressed or cast
  int odd_op = 10;      ///< uncompressed tensors with Min, Max or Product
  int in_place = 60;
  int scaled = 10;      ///< with prescale and postscale
  int nonfinite = 4;    ///< tensors that hold a NaN or Inf in one step
  int re_planned = 25;  ///< sums and means of floats whose plan is over after some steps
  int same_order = 40;  ///< schedules in which all ranks submit in one order
  int global_policy = 25;
  int disagree = 12;  ///< schedules in which one rank once submits other terms
  int join = 20;      ///< of the others: some ranks join early, and all later on
  int leave = 25;     ///< schedules whose ranks shut down when they are through
  int faults = 25;    ///< schedules with one or two faults
  int threads = 40;   ///< schedules whose turns are those of threads, which sleep and are woken
  std::vector<std::size_t> waiters{1, 1, 2, 3};  ///< with threads: of each program
  int holds = 40;                                ///< of these: one more thread keeps the program's lock now and then
  int ticks = 50;                                ///< schedules without faults in which time passes without news, too
  int device = 35;       ///< schedules in which most ranks' tensors are a device's, and computed on its stream
  int lane = 50;         ///< of these, with devices that send to each other
  int prioritised = 50;  ///< schedules in which some tensors go before others
  int evicting = 50;     ///< schedules in which ranks keep fewer operations than there are, in more steps
  int shapes = 40;       ///< of these: tensors of several shapes, of which each step has one
  std::vector<std::size_t> kept{1, 1, 2, 3, 5};  ///< operations, of these

  std::string print() const;
};

/// One job, all of it drawn from a seed.
struct Schedule {
  std::uint64_t seed = 0;
  int size = 1;
  VirtualOptions options;
  VirtualScript script;
  std::vector<bool> in_place;                ///< per tensor
  std::vector<std::int64_t> nonfinite_step;  ///< per tensor, -1: none
  std::vector<std::vector<bool>> joined;     ///< [step][rank], empty: no rank ever joins
  bool breaks = false;                       ///< its faults may end operations with an error
  std::vector<int> culprits;                 ///< ranks one of which such an error must name

  /// Whether in this step the rank has joined and the others may not have.
  bool has_joined(std::uint32_t step, int rank) const {
    return !joined.empty() && joined[step][static_cast<std::size_t>(rank)];
  }
  std::string print() const;
};

/// Whether a reducescatter carries it.
bool scatters(const std::string& codec);

Schedule draw(std::uint64_t seed, const Distributions& from);

/// All routes, each of which carries every codec.
inline const std::vector<std::string> kTopologies{"direct", "ps", "ring", "two_level"};

/// Random numbers of a schedule: splitmix64.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace casync::test
