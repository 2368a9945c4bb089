// Runs one codec's code for the CPU and its code for CUDA side by side, for a few steps, and says where they differ.
//
//   compare CHOICE ORDER PARAMETER...      parameters as bits of 32-bit words; on a device, a cubin for ORDER
//
// In, for each case: `Case`, where its units begin, the gradient. Out: one line for each difference, then how many
// cases there were.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cuda/device_kernels.hpp"
#include "device.hpp"

namespace casync::codec {
Reading reading() { return Reading::in_order; }
namespace baseline {
extern const UnitKernels CPU_KERNELS[];
}
namespace cuda {
extern "C" const DeviceKernels CUDA_KERNELS[];
}
}  // namespace casync::codec

namespace {

using namespace casync::codec;
using device::DeviceArray;
using device::launch;
namespace gpu = casync::codec::cuda;  // there is a ::cuda too

struct Case {
  std::int64_t n;
  std::int64_t units;
  std::int32_t rows;
  std::int32_t cols;
  std::int32_t first_step;
  std::int32_t steps;
  std::int32_t rounds;
  std::int32_t feedback;  // with a residual
  float mid;
  std::int32_t states;
  std::int32_t states_per_element;  // a bit for each
  std::int32_t received_infinity;   // bits that are set in what is received and not finite; 0: it is of integers
  std::int32_t received_bytes;      // of an element
};

void read(void* to, std::size_t bytes) {
  if (std::fread(to, 1, bytes, stdin) != bytes) std::exit(3);
}
template <typename T>
std::vector<T> read_array(std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  read(values.data(), values.size() * sizeof(T));
  return values;
}

bool same(float a, float b) {
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  std::memcpy(&x, &a, 4);
  std::memcpy(&y, &b, 4);
  return x == y || (a != a && b != b);
}
bool same(std::byte a, std::byte b) { return a == b; }

class Comparison {
 public:
  Comparison(const UnitKernels& cpu, const gpu::DeviceKernels& gpu, const std::vector<Parameter>& parameters,
             const Case& given)
      : cpu_(cpu),
        gpu_(gpu),
        parameters_(parameters),
        case_(given),
        begin_(read_array<std::int64_t>(given.units + 1)),
        gradient_(read_array<float>(given.n)),
        residual_(gradient_.size() * (given.feedback != 0 ? 1 : 0), 0.125F),
        gpu_begin_(begin_),
        gpu_gradient_(gradient_),
        gpu_residual_(residual_) {
    facts_ = Facts{.parameters = parameters_.data(),
                   .n = case_.n,
                   .rows = case_.rows,
                   .cols = case_.cols,
                   .world = 3,
                   .rank = 1,
                   .name = 0x1234567,
                   .lr = 0.1F,
                   .momentum = 0.9F,
                   .key = {.name_hash = 0x0123456789ABCDEF, .stream = 2}};
    for (int i = 0; i < case_.states; ++i) {
      std::vector<float> values(static_cast<std::size_t>(cpu_.elements(facts_, i)));
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = cpu_.start(facts_, i, static_cast<std::int64_t>(k));
      states_.push_back(values);
      gpu_states_.emplace_back(values);
    }
    for (std::int64_t u = 0; u < case_.units; ++u) longest_ = std::max(longest_, begin_[u + 1] - begin_[u]);
  }

  void run() {
    if (cpu_.propose != nullptr) agree();
    for (int step = 0; step < case_.steps; ++step) {
      facts_.step = case_.first_step + step;
      facts_.key.sequence = static_cast<std::uint32_t>(facts_.step);
      std::vector<std::byte> received;
      for (int round = 0; round < case_.rounds; ++round) {
        const std::string at = "step " + std::to_string(step) + " round " + std::to_string(round) + " ";
        const std::vector<std::byte> payload = encode(round, received, at);
        if (round + 1 < case_.rounds) {
          received = payload;
        } else {
          decode(payload, received, at);
          if (step == 0 && case_.units == 1 && cpu_.decode_unit != nullptr) decode_damaged(payload, received, at);
        }
      }
    }
  }

 private:
  // --- both sides

  Facts facts_of(std::int64_t unit) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      pointers_[i] = states_[i].data() + ((case_.states_per_element >> i & 1) != 0 ? begin_[unit] : 0);
    Facts facts = facts_;
    facts.state = pointers_;
    facts.n = begin_[unit + 1] - begin_[unit];
    facts.key.coordinate = static_cast<std::uint64_t>(begin_[unit]);
    scratch_.resize(static_cast<std::size_t>(cpu_.scratch_bytes == nullptr ? 0 : cpu_.scratch_bytes(facts)) + 64);
    return facts;
  }
  std::byte* aligned_scratch() {
    return scratch_.data() + (64 - reinterpret_cast<std::uintptr_t>(scratch_.data()) % 64) % 64;
  }

  gpu::Units units() {
    gpu::Units units{
        .facts = facts_, .begin = gpu_begin_.data(), .count = case_.units, .longest = longest_, .teams = 3};
    for (std::size_t i = 0; i < parameters_.size(); ++i) units.parameters[i] = parameters_[i];
    for (std::size_t i = 0; i < gpu_states_.size(); ++i) units.state[i] = gpu_states_[i].data();
    use_fresh_scratch(units);
    units.scratch_each = gpu_.scratch_each(units);
    return units;
  }
  /// Full of rubbish, but for what must be zero.
  void use_fresh_scratch(gpu::Units& units) {
    std::vector<std::byte> rubbish(static_cast<std::size_t>(gpu_.scratch_bytes(units)), std::byte{0x5a});
    std::fill_n(rubbish.begin(), gpu::kGridBytes, std::byte{0});
    gpu_scratch_.clear();
    gpu_scratch_.emplace_back(rubbish);
    units.scratch = gpu_scratch_[0].data();
  }

  template <typename T>
  void expect_same(const std::vector<T>& cpu, const std::vector<T>& gpu, const std::string& what) {
    if (cpu.size() != gpu.size()) {
      std::printf("n %ld: %s: %zu and %zu\n", static_cast<long>(case_.n), what.c_str(), cpu.size(), gpu.size());
      return;
    }
    std::size_t different = 0;
    std::size_t first = 0;
    for (std::size_t i = cpu.size(); i-- > 0;)
      if (!same(cpu[i], gpu[i])) {
        ++different;
        first = i;
      }
    if (different > 0)
      std::printf("n %ld: %s: %zu of %zu differ, first %zu: %g and %g\n", static_cast<long>(case_.n), what.c_str(),
                  different, cpu.size(), first, static_cast<double>(cpu[first]), static_cast<double>(gpu[first]));
  }
  void expect_same(std::int64_t cpu, std::int64_t gpu, const std::string& what) {
    if (cpu != gpu)
      std::printf("n %ld: %s: %ld and %ld\n", static_cast<long>(case_.n), what.c_str(), static_cast<long>(cpu),
                  static_cast<long>(gpu));
  }
  void expect_same_states(const std::string& at) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      expect_same(states_[i], gpu_states_[i].copy(), at + "state " + std::to_string(i));
  }

  // --- what all ranks agree on

  void agree() {
    Facts facts = facts_of(0);
    facts.n = case_.n;
    scratch_.resize(static_cast<std::size_t>(cpu_.propose_scratch(facts)) + 64);
    const UnitJob job{.facts = facts, .accumulated = gradient_.data(), .mid = case_.mid, .scratch = aligned_scratch()};
    const float value = cpu_.propose(job);
    if (value - value == 0.0F) cpu_.agree(facts, value);  // otherwise the runtime does not ask the CPU

    const DeviceArray<std::int64_t> whole(std::vector<std::int64_t>{0, case_.n});
    const DeviceArray<float> proposed(1);
    gpu::EncodeBatch batch{.units = units(), .accumulated = gpu_gradient_.data(), .mid = case_.mid};
    batch.units.begin = whole.data();
    batch.units.count = 1;
    batch.units.longest = case_.n;
    use_fresh_scratch(batch.units);
    launch(gpu_.propose, batch.units, gpu::ProposeBatch{.encode = batch, .proposed = proposed.data()});
    launch(gpu_.agree, batch.units, gpu::AgreeBatch{.units = batch.units, .received = proposed.data()});
    expect_same({value}, proposed.copy(), "proposed");
    expect_same_states("agreed: ");
  }

  // --- encode

  std::vector<std::byte> encode(int round, const std::vector<std::byte>& received, const std::string& at) {
    Facts longest = facts_;
    longest.n = longest_;
    const std::int64_t slot = cpu_.bound(longest, round);
    const DeviceArray<std::byte> slots(static_cast<std::size_t>(slot * case_.units));
    const DeviceArray<EncodedUnit> encoded(static_cast<std::size_t>(case_.units));
    const DeviceArray<std::byte> gpu_received(received);
    const gpu::EncodeBatch batch{.units = units(),
                                 .round = round,
                                 .accumulated = gpu_gradient_.data(),
                                 .residual = case_.feedback != 0 ? gpu_residual_.data() : nullptr,
                                 .mid = case_.mid,
                                 .received = gpu_received.data(),
                                 .slots = slots.data(),
                                 .slot_bytes = slot,
                                 .encoded = encoded.data()};
    launch(gpu_.encode, batch.units, batch);
    const DeviceArray<std::byte> gathered(static_cast<std::size_t>(slot * case_.units));
    const DeviceArray<std::int64_t> places(static_cast<std::size_t>(case_.units + 1));
    const gpu::GatherBatch gather{.encode = batch, .at = places.data(), .payload = gathered.data()};
    launch(gpu_.place, batch.units, gather, true);
    launch(gpu_.move, batch.units, gather);

    std::vector<std::byte> all;
    const std::vector<EncodedUnit> of_gpu = encoded.copy();
    for (std::int64_t u = 0; u < case_.units; ++u) {
      std::vector<std::byte> payload(static_cast<std::size_t>(slot) + 64);
      const EncodedUnit unit = encode_on_cpu(u, round, received, payload.data(), slot);
      expect_same(unit.bytes, of_gpu[u].bytes, at + "bytes of unit " + std::to_string(u));
      expect_same(unit.nonfinite ? 1 : 0, of_gpu[u].nonfinite ? 1 : 0, at + "not finite, unit " + std::to_string(u));
      all.insert(all.end(), payload.begin(), payload.begin() + unit.bytes);
    }
    std::vector<std::byte> payload = gathered.copy();
    payload.resize(static_cast<std::size_t>(places.copy().back()));
    expect_same(all, payload, at + "payload");
    expect_same(residual_, gpu_residual_.copy(), at + "residual");
    expect_same_states(at);
    return all;
  }

  EncodedUnit encode_on_cpu(std::int64_t u, int round, const std::vector<std::byte>& received, std::byte* to,
                            std::int64_t slot) {
    UnitJob job{.facts = facts_of(u),
                .accumulated = gradient_.data() + begin_[u],
                .residual = case_.feedback != 0 ? residual_.data() + begin_[u] : nullptr,
                .mid = case_.mid,
                .payload = to,
                .payload_end = to + slot,
                .received = received.data(),
                .scratch = aligned_scratch()};
    if (cpu_.encode != nullptr) {
      const bool nonfinite = cpu_.encode(job);
      return {.bytes = cpu_.bound(job.facts, 0), .nonfinite = nonfinite};
    }
    const EncodedUnit encoded = cpu_.encode_unit(job, round);
    bool finite = !encoded.nonfinite && round == case_.rounds - 1;
    finite = finite && is_finite(received);
    if (job.residual == nullptr || !finite || encoded.settled) return encoded;
    const DecodeJob sent{.facts = job.facts,
                         .payload = to,
                         .payload_end = to + encoded.bytes,
                         .received = received.data(),
                         .scratch = job.scratch,
                         .out = job.residual,
                         .accumulated = job.accumulated,
                         .divisor = case_.mid};
    cpu_.decode_unit(sent, Into::lose);
    return encoded;
  }

  bool is_finite(const std::vector<std::byte>& received) const {
    const auto size = static_cast<std::size_t>(case_.received_bytes);
    for (std::size_t at = 0; case_.received_infinity != 0 && at < received.size(); at += size) {
      std::int32_t bits = 0;
      std::memcpy(&bits, received.data() + at, size);
      if ((bits & case_.received_infinity) == case_.received_infinity) return false;
    }
    return true;
  }

  // --- decode

  void decode(const std::vector<std::byte>& payload, const std::vector<std::byte>& received, const std::string& at) {
    const std::vector<Into> ways =
        cpu_.encode != nullptr ? std::vector{Into::set, Into::add} : std::vector{Into::lose, Into::add, Into::set};
    std::vector<float> out(gradient_.size(), 0.5F);
    const DeviceArray<float> gpu_out(out);
    for (const Into into : ways) {
      const bool keep = into == Into::set;
      std::vector<std::int64_t> places{0};
      std::vector<std::int64_t> used;
      for (std::int64_t u = 0; u < case_.units; ++u) {
        used.push_back(decode_on_cpu(u, payload, places.back(), received, out.data() + begin_[u], into, keep));
        places.push_back(places.back() + used.back());
      }
      const DeviceArray<std::byte> gpu_payload(payload);
      const DeviceArray<std::int64_t> gpu_places(places.size());
      const DeviceArray<std::int64_t> gpu_used(used.size());
      const DeviceArray<std::byte> gpu_received(received);
      const gpu::DecodeBatch batch{.units = units(),
                                   .into = into,
                                   .payload = gpu_payload.data(),
                                   .at = gpu_places.data(),
                                   .received = gpu_received.data(),
                                   .out = gpu_out.data(),
                                   .accumulated = gpu_gradient_.data(),
                                   .divisor = 3.0F,
                                   .keep = keep,
                                   .used = gpu_used.data()};
      const auto bytes = static_cast<std::int64_t>(payload.size());
      launch(gpu_.locate, batch.units, gpu::LocateBatch{.decode = batch, .bytes = bytes, .at = gpu_places.data()},
             true);
      launch(gpu_.decode, batch.units, batch);
      const std::string what = at + "decoded " + std::to_string(static_cast<int>(into));
      const std::vector<std::int64_t> located = gpu_places.copy();
      for (std::size_t u = 0; u < places.size(); ++u) expect_same(places[u], located[u], what + ": place");
      const std::vector<std::int64_t> of_gpu = gpu_used.copy();
      for (std::size_t u = 0; u < used.size(); ++u) expect_same(used[u], of_gpu[u], what + ": bytes");
      expect_same(out, gpu_out.copy(), what);
      expect_same_states(what + ": ");
    }
  }

  /// Either side must refuse what the other refuses; which of equal indices comes last is not said.
  void decode_damaged(const std::vector<std::byte>& payload, const std::vector<std::byte>& received,
                      const std::string& at) {
    std::uint32_t random = 1;
    for (int attempt = 0; attempt < 6 && !payload.empty(); ++attempt) {
      std::vector<std::byte> damaged = payload;
      if (attempt == 0) damaged.resize(damaged.size() / 2);
      for (int i = 0; i < attempt; ++i) {
        random = random * 1664525U + 1013904223U;
        damaged[(attempt < 3 ? random % 8 : random) % damaged.size()] ^= static_cast<std::byte>(1U << (random >> 29));
      }
      std::vector<float> out(gradient_.size());
      const std::int64_t used = decode_on_cpu(0, damaged, 0, received, out.data(), Into::set, false);
      const DeviceArray<std::byte> gpu_payload(damaged);
      const DeviceArray<std::int64_t> places(std::vector<std::int64_t>{0, static_cast<std::int64_t>(damaged.size())});
      const DeviceArray<std::int64_t> gpu_used(1);
      const DeviceArray<std::byte> gpu_received(received);
      const DeviceArray<float> gpu_out(out);
      const gpu::DecodeBatch batch{.units = units(),
                                   .payload = gpu_payload.data(),
                                   .at = places.data(),
                                   .received = gpu_received.data(),
                                   .out = gpu_out.data(),
                                   .used = gpu_used.data()};
      launch(gpu_.decode, batch.units, batch);
      expect_same(used, gpu_used.copy()[0], at + "bytes of a damaged payload, attempt " + std::to_string(attempt));
    }
  }

  std::int64_t decode_on_cpu(std::int64_t u, const std::vector<std::byte>& payload, std::int64_t place,
                             const std::vector<std::byte>& received, float* out, Into into, bool keep) {
    const Facts facts = facts_of(u);
    const std::byte* const from = payload.data() + place;
    if (cpu_.merge != nullptr) {
      std::vector<std::byte> padded(from, from + cpu_.bound(facts, 0));
      padded.resize(padded.size() + 64);
      const MergeSource sources[]{{.raw = out}, {.payload = padded.data(), .facts = &facts}};
      const bool adds = into == Into::add;
      std::vector<float> sum(static_cast<std::size_t>(facts.n));
      cpu_.merge(adds ? sources : sources + 1, adds ? 2 : 1, sum.data(), facts.n, false);
      std::memcpy(out, sum.data(), sum.size() * 4);
      return cpu_.bound(facts, 0);
    }
    const DecodeJob job{.facts = facts,
                        .payload = from,
                        .payload_end = payload.data() + payload.size(),
                        .received = received.data(),
                        .scratch = aligned_scratch(),
                        .out = out,
                        .accumulated = gradient_.data() + begin_[u],
                        .divisor = 3.0F,
                        .keep = keep};
    return cpu_.decode_unit(job, into);
  }

  const UnitKernels& cpu_;
  const gpu::DeviceKernels& gpu_;
  const std::vector<Parameter>& parameters_;
  Case case_;
  Facts facts_;
  std::int64_t longest_ = 0;
  std::vector<std::int64_t> begin_;
  std::vector<float> gradient_;
  std::vector<float> residual_;
  std::vector<std::vector<float>> states_;
  std::vector<std::byte> scratch_;
  float* pointers_[8]{};
  DeviceArray<std::int64_t> gpu_begin_;
  DeviceArray<float> gpu_gradient_;
  DeviceArray<float> gpu_residual_;
  std::vector<DeviceArray<float>> gpu_states_;
  std::vector<DeviceArray<std::byte>> gpu_scratch_;
};

}  // namespace

int main(int count, char** arguments) {
  const int choice = std::atoi(arguments[1]);
  device::load(arguments[2]);
  std::vector<Parameter> parameters;
  for (int i = 3; i < count; ++i) parameters.push_back({.whole = static_cast<std::int32_t>(std::atoll(arguments[i]))});
  long cases = 0;
  for (Case given; std::fread(&given, sizeof given, 1, stdin) == 1; ++cases)
    Comparison(baseline::CPU_KERNELS[choice], gpu::CUDA_KERNELS[choice], parameters, given).run();
  std::printf("%ld cases\n", cases);
  return 0;
}
