// What a steady step costs rank 0: 400 gradients of 64 KiB, worlds of up to 128 ranks in virtual time, sizes only. One
// JSON object per world on standard output. See __main__.py.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "casync/error.hpp"
#include "executor/virtual/world.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kGradients = 400;
constexpr std::int64_t kNumel = 16 << 10;     // float32: 64 KiB
constexpr std::uint32_t kSteps = 2;           // the last one counts: names and plans are known by then
constexpr Nanoseconds kPause = 100'000'000;   // before a step, in which all ranks get through with the one before
constexpr Nanoseconds kSkew = 500'000;        // by which ranks reach the same gradient at different times
constexpr Nanoseconds kSpread = 200'000'000;  // of a backward pass that takes its time
constexpr double kBytesPerSecond = 5e10;      // 400 Gbit/s, a host for each rank: links are not the limit here

Nanoseconds clock_now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

struct Counts {
  std::uint64_t ready = 0;  ///< entries that say that a rank is ready, of any number of gradients
  std::uint64_t start = 0;  ///< entries that let a rank begin
  std::uint64_t sends = 0;  ///< of gradients: a body each
  std::uint64_t accepts = 0;
  std::uint64_t events = 0;
  std::uint64_t decisions = 0;
  Nanoseconds inside = 0;  ///< in apply and decide
};

/// Counts what rank 0's Engine does from a moment on. What the executor does for an action happens within the call that
/// emits it, and counts.
class Watch final : public Observer {
 public:
  Watch(VirtualWorld& world, Nanoseconds from) : world_(world), from_(from) {}

  void on_event(const Event& event, Nanoseconds now) override {
    if (!watches(now)) return;
    ++counts.events;
    if (const auto* const control = std::get_if<event::Control>(&event)) {
      counts.ready += kind_of(control->message) == ControlKind::ready ? 1 : 0;
    }
    begun_ = clock_now();
  }
  void on_decide(Nanoseconds now) override {
    if (!watches(now)) return;
    ++counts.decisions;
    begun_ = clock_now();
  }
  void on_action(const Action& action) override {
    if (!before) return;
    if (const auto* const control = std::get_if<action::Control>(&action)) {
      counts.start += kind_of(control->message) == ControlKind::start ? 1 : 0;
    }
    counts.sends += std::holds_alternative<action::Send>(action) ? 1 : 0;
    counts.accepts += std::holds_alternative<action::Accept>(action) ? 1 : 0;
  }
  void on_return() override {
    if (before) counts.inside += clock_now() - begun_;
  }

  Counts counts;
  std::optional<TransportCounters> before;  ///< at that moment

 private:
  bool watches(Nanoseconds now) {
    if (!before && now > from_) before = world_.transport(0).counters();
    return before.has_value();
  }

  VirtualWorld& world_;
  Nanoseconds from_;
  Nanoseconds begun_ = 0;
};

void measure(std::uint32_t ranks, Nanoseconds spread) {
  VirtualScript script;
  for (std::uint32_t g = 0; g < kGradients; ++g) {
    VirtualTensor tensor;
    tensor.name = detail::concat("gradient", g);
    tensor.signature.shape = {kNumel, 1};
    tensor.plan.topology = "ps";
    tensor.plan.codec = "none";
    tensor.plan.partitions = 1;
    tensor.plan.first_owner = g % ranks;
    script.tensors.push_back(std::move(tensor));
  }
  std::uint64_t state = 1;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<Submission>> each(ranks);
    for (std::vector<Submission>& submissions : each) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const Nanoseconds late = spread == 0 ? 0 : static_cast<Nanoseconds>((state >> 33U) % kSkew);
      for (std::uint32_t g = 0; g < kGradients; ++g)
        submissions.push_back({g, kPause + late + spread * g / kGradients, 0});
    }
    script.steps.push_back(std::move(each));
  }

  VirtualOptions options;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) options.network.host_of.push_back(rank);
  options.network.between.bytes_per_second = kBytesPerSecond;
  options.sizes_only = true;
  options.ticks = false;
  options.notice = 20'000;

  VirtualScript all_but_one = script;
  all_but_one.steps.resize(kSteps - 1);
  const auto run = [](VirtualWorld& world) {
    const VirtualOutcome outcome = world.run();
    CASYNC_CHECK(!outcome.hung, outcome.waiting);
    return outcome.step_ends.back();
  };
  VirtualWorld first(options, std::move(all_but_one), nullptr);
  const Nanoseconds begun = run(first);
  VirtualWorld world(options, std::move(script), nullptr);
  Watch watch(world, begun);
  world.driver(0).watched_by(watch);
  const Nanoseconds ended = run(world);
  const Counts& counts = watch.counts;
  const TransportCounters after = world.transport(0).counters();
  std::printf(
      "{\"ranks\": %u, \"over_ms\": %lld, \"ready\": %llu, \"start\": %llu, \"heads_in\": %llu, \"heads_out\": %llu, "
      "\"events\": %llu, \"decisions\": %llu, \"inside_ms\": %.3f, \"step_ms\": %.3f}\n",
      ranks, static_cast<long long>(spread / 1'000'000), static_cast<unsigned long long>(counts.ready),
      static_cast<unsigned long long>(counts.start),
      static_cast<unsigned long long>(after.received_messages - watch.before->received_messages - counts.accepts),
      static_cast<unsigned long long>(after.sent_messages - watch.before->sent_messages - counts.sends),
      static_cast<unsigned long long>(counts.events), static_cast<unsigned long long>(counts.decisions),
      static_cast<double>(counts.inside) * 1e-6, static_cast<double>(ended - begun - kPause) * 1e-6);
  std::fflush(stdout);
}

}  // namespace
}  // namespace casync

int main(int argc, char** argv) {
  const auto most = argc > 1 ? static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 128U;
  for (const std::uint32_t ranks : {4U, 16U, 64U, 128U}) {
    if (ranks > most) continue;
    casync::measure(ranks, 0);
    casync::measure(ranks, casync::kSpread);
  }
  return 0;
}
