// What steps of fixed shape cost the core on four ranks, in numbers that do not depend on the machine:
//   step_counts               lists the cases
//   step_counts compiler      says what compiled this
//   step_counts CASE STEPS    prints messages, bytes, tasks, turns and allocations of all ranks, as JSON
// The world is virtual, in one thread and from one seed, so each run of the same steps counts the same. tools/counts.py
// subtracts a short run from a long one, and has callgrind count the instructions of both.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "casync/error.hpp"
#include "executor/virtual/world.hpp"

namespace {

std::uint64_t allocations = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace casync {
namespace {

constexpr std::uint32_t kRanks = 4;

/// One step of a case: tensors that are submitted one after the other, in this order.
struct Case {
  std::size_t tensors;
  std::int64_t least, most;  ///< numbers of a tensor; sizes in between take turns
  std::string codec, topology;
};

const std::map<std::string, Case> kCases{
    {"large_none_ps", {12, 1'000, 300'000, "none", "ps"}},
    {"large_none_ring", {12, 1'000, 300'000, "none", "ring"}},
    {"large_onebit_ps", {12, 1'000, 300'000, "onebit", "ps"}},
    {"two_level_none", {12, 1'000, 300'000, "none", "two_level"}},
    {"small_none", {200, 250, 1'000, "none", "direct"}},
};

class Program final : public VirtualProgram {
 public:
  Program(std::size_t tensors, std::int64_t most) : tensors_(tensors), most_(static_cast<std::size_t>(most)) {
    data_.resize(kRanks * tensors_ * most_, 0.5F);
  }
  Buffers buffers(Rank rank, std::uint32_t, std::uint32_t tensor) override {
    float* place = data_.data() + (rank * tensors_ + tensor) * most_;
    return {place, place};
  }
  void ended(Rank, std::uint32_t, std::uint32_t, Operation& operation) override {
    if (operation.status != Status::ok) throw Error(operation.text);
  }

 private:
  std::size_t tensors_, most_;
  std::vector<float> data_;
};

void count(const Case& shape, std::uint32_t steps) {
  VirtualScript script;
  std::vector<Submission> all;
  for (std::uint32_t t = 0; t < shape.tensors; ++t) {
    VirtualTensor tensor;
    tensor.name = detail::concat("layer.", t, ".weight");
    const std::int64_t step = (shape.most - shape.least) / static_cast<std::int64_t>(shape.tensors);
    tensor.signature.shape = {shape.least + step * static_cast<std::int64_t>(t * 7 % shape.tensors)};
    tensor.signature.compression = tensor.plan.codec = shape.codec;
    tensor.plan.topology = shape.topology;
    tensor.plan.partitions = 4;
    script.tensors.push_back(tensor);
    all.push_back({t, 10'000 * static_cast<Nanoseconds>(t), 0});
  }
  script.steps.assign(steps, std::vector<std::vector<Submission>>(kRanks, all));
  VirtualOptions options;
  options.network.host_of = {0, 0, 1, 1};
  options.ticks = false;
  Program program(shape.tensors, shape.most);
  const std::uint64_t before = allocations;
  VirtualWorld world(options, script, &program);
  const VirtualOutcome outcome = world.run();
  const std::uint64_t made = allocations - before;
  if (outcome.hung) throw Error(outcome.waiting);
  TransportCounters traffic;
  std::uint64_t tasks = 0;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    traffic = traffic + world.transport(rank).counters();
    Metrics metrics;
    world.driver(rank).tally().read(metrics);
    for (const auto& codec : metrics.codecs) tasks += codec.encode.tasks + codec.decode.tasks + codec.merge.tasks;
  }
  std::cout << "{\"messages\": " << traffic.sent_messages << ", \"bytes\": " << traffic.sent_bytes
            << ", \"tasks\": " << tasks << ", \"turns\": " << outcome.turns << ", \"allocations\": " << made << "}\n";
}

}  // namespace
}  // namespace casync

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& [name, shape] : casync::kCases) std::cout << name << '\n';
    return 0;
  }
  if (argc == 2 && std::string(argv[1]) == "compiler") {
    std::cout << __VERSION__ << '\n';
    return 0;
  }
  const auto found = casync::kCases.find(argv[1]);
  if (argc != 3 || found == casync::kCases.end()) {
    std::cerr << "step_counts [CASE STEPS | compiler]; without arguments it lists the cases\n";
    return 2;
  }
  casync::count(found->second, static_cast<std::uint32_t>(std::stoul(argv[2])));
}
