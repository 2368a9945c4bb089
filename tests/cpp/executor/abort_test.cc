// What an operation leaves behind that is aborted in the middle: seeded faults in virtual time, on real bytes.
//
// On every rank that survives, each partition of the gradient was either delivered (the output holds the final value),
// or given back (the residual is the gradient plus what it was before), or never taken (the residual is as it was). Of
// a reducescatter the rows of other ranks count as delivered when they are sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "casync/error.hpp"
#include "codec/reference.hpp"
#include "executor/reference.hpp"
#include "executor/schedule.hpp"

namespace casync::test {
namespace {

constexpr std::uint32_t kSteps = 2;

struct Case {
  std::string topology;
  std::string codec;
  OpKind kind = OpKind::allreduce;
};

/// One job and its inputs, all drawn from a seed. Every rank submits every tensor in each step.
struct Job {
  Job(const Case& what, std::uint64_t from) : seed(from), dice(from) {
    size = static_cast<int>(2 + dice.below(5));
    for (int m = 0; m < size; ++m) {
      const auto host = static_cast<std::uint32_t>(dice.chance(50) ? m / 2 : m);
      options.network.host_of.push_back(host);
    }
    options.seed = dice.next();
    options.network.between = {dice.one_of(std::vector<double>{1.25e6, 1.25e7, 1.25e8}), 50'000};
    options.network.jitter = dice.one_of(std::vector<Nanoseconds>{0, 1'000'000});
    options.workers.threads = 1 + static_cast<int>(dice.below(3));
    options.workers.seconds_per_byte = dice.one_of(std::vector<double>{1e-10, 1e-8});
    options.engine.pool_bytes = dice.one_of(std::vector<std::size_t>{2000, 64 << 10, 24 << 20});
    options.engine.inline_bytes = dice.one_of(std::vector<std::size_t>{64, 12 << 10});
    options.engine.at_once_bytes = dice.one_of(std::vector<std::size_t>{0, 0, 64 << 10});
    options.engine.batch_bytes = dice.one_of(std::vector<std::size_t>{1, 64 << 10});
    in_place = dice.chance(50) && what.kind == OpKind::allreduce;
    for (int t = 0; t < 2; ++t) script.tensors.push_back(tensor_of(what, detail::concat("w", t)));
    script.steps.assign(kSteps, std::vector<std::vector<Submission>>(static_cast<std::size_t>(size), {{0}, {1}}));
    if (dice.chance(15)) spoilt = static_cast<int>(dice.below(static_cast<std::uint64_t>(size)));
  }

  VirtualTensor tensor_of(const Case& what, const std::string& name) {
    VirtualTensor tensor;
    tensor.name = name;
    tensor.signature.kind = what.kind;
    const bool whole = make_codec(what.codec)->info().whole;
    const std::int64_t cols = dice.one_of(std::vector<std::int64_t>{whole ? 100 : 1, 257});
    tensor.signature.shape = {dice.one_of(std::vector<std::int64_t>{9000, 33000}) / cols, cols};
    tensor.signature.dtype = dice.one_of(
        std::vector<DType>{DType::float32, DType::float32, DType::float16, DType::bfloat16, DType::float64});
    tensor.signature.compression = tensor.plan.codec = what.codec;
    tensor.plan.topology = what.topology;
    const auto n = static_cast<std::uint32_t>(size);
    tensor.plan.partitions = whole ? 1 : dice.one_of(std::vector<std::uint32_t>{1, 3, n, 2 * n});
    tensor.plan.first_owner = static_cast<std::uint32_t>(dice.below(n));
    return tensor;
  }

  /// Something breaks within the first `span` of the job.
  void add_fault(Nanoseconds span) {
    const auto n = static_cast<std::uint64_t>(size);
    Fault fault;
    fault.kind = dice.one_of(std::vector<Fault::Kind>{Fault::Kind::kill, Fault::Kind::cut, Fault::Kind::abort});
    fault.at = static_cast<Nanoseconds>(dice.below(static_cast<std::uint64_t>(span)));
    fault.rank = static_cast<int>(dice.below(n));
    fault.peer = static_cast<int>((static_cast<std::uint64_t>(fault.rank) + 1 + dice.below(n - 1)) % n);
    fault.noticed = dice.one_of(std::vector<double>{1.0, 0.4, 0.0});
    script.faults.push_back(fault);
  }

  Blob input_of(int rank, std::uint32_t step, std::uint32_t tensor) const {
    const Signature& signature = script.tensors[tensor].signature;
    const auto numel = static_cast<std::size_t>(signature.shape.numel());
    Blob blob(numel * size_of(signature.dtype));
    Dice own(seed * 1009 + step * 101 + tensor * 11 + static_cast<std::uint64_t>(rank));
    for (std::size_t i = 0; i < numel; ++i) {
      const double value = static_cast<double>(static_cast<std::int32_t>(own.next() >> 32U)) * 0x1.0p-31;
      reference::write(blob.data(), i, signature.dtype, static_cast<double>(static_cast<float>(value)));
    }
    if (rank == spoilt && tensor == 0) reference::write(blob.data(), own.below(numel), signature.dtype, NAN);
    return blob;
  }

  std::vector<Range> partitions_of(std::uint32_t tensor) const {
    const VirtualTensor& what = script.tensors[tensor];
    const auto codec = make_codec(what.plan.codec);
    WorkflowRequest request;
    request.kind = what.signature.kind;
    request.shape = what.signature.shape;
    request.dtype = what.signature.dtype;
    request.codec = codec.get();
    const auto route = make_route(what.plan.topology);
    request.route = route.get();
    request.partitions = what.plan.partitions;
    request.first_owner = what.plan.first_owner;
    request.host_of = options.network.host_of;
    return build_workflow(request).partitions;
  }

  /// Elements of which `rank` has the result.
  Range own(int rank, std::uint32_t tensor) const {
    const VirtualTensor& what = script.tensors[tensor];
    if (what.signature.kind == OpKind::allreduce) return {0, what.signature.shape.numel()};
    return TensorReference(what, options.network.host_of).rows_of(static_cast<std::uint32_t>(rank));
  }

  std::uint64_t seed;
  Dice dice;
  int size = 0;
  int spoilt = -1;  ///< this rank's first tensor holds a NaN
  bool in_place = false;
  VirtualOptions options;
  VirtualScript script;
};

/// The ranks' programs: they keep what each operation left behind when it ended.
class Program final : public VirtualProgram {
 public:
  struct End {
    std::uint32_t step = 0;
    Status status = Status::ok;
    Blob output;
    std::vector<float> residual;
  };

  explicit Program(const Job& job) : job_(job), world_(job.options, job.script, this) {}

  VirtualOutcome run() { return world_.run(); }

  Buffers buffers(Rank rank, std::uint32_t step, std::uint32_t tensor) override {
    Place& place = places_[{rank, tensor}];
    place.input = job_.input_of(rank, step, tensor);
    place.output = job_.in_place ? place.input : Blob(place.input.size(), std::byte{0xcd});
    return {job_.in_place ? place.output.data() : place.input.data(), place.output.data()};
  }
  void ended(Rank rank, std::uint32_t step, std::uint32_t tensor, Operation& operation) override {
    ends[{rank, tensor}] = {step, operation.status, output(rank, tensor), residual(rank, tensor)};
  }

  bool alive(int rank) const { return world_.alive(rank); }
  /// The result, each element in its place in the tensor.
  Blob output(int rank, std::uint32_t tensor) {
    const Blob& given = places_[{rank, tensor}].output;
    const auto element = static_cast<std::ptrdiff_t>(size_of(job_.script.tensors[tensor].signature.dtype));
    const Range own = job_.own(rank, tensor);
    Blob placed(given.size(), std::byte{0xcd});
    std::copy_n(given.begin(), own.size() * element, placed.begin() + own.begin * element);
    return placed;
  }
  /// What is not sent yet, as it is now: the residual, or what the codec keeps of its own; empty: there is none.
  std::vector<float> residual(int rank, std::uint32_t tensor) {
    const GradientState* const found = world_.kept(rank, job_.script.tensors[tensor].name);
    if (found == nullptr) return {};
    const FloatArray left = found->residual.empty() ? found->pending() : found->residual;
    return {left.begin(), left.end()};
  }

  std::map<std::pair<int, std::uint32_t>, End> ends;  ///< of the last operation, by rank and tensor

 private:
  struct Place {
    Blob input, output;
  };
  const Job& job_;
  std::map<std::pair<int, std::uint32_t>, Place> places_;
  VirtualWorld world_;
};

struct Found {
  std::array<int, 3> partitions{};  ///< delivered, given back, never taken, of aborted operations
  std::vector<std::string> failures;
};

/// What the ranks must have and may have after a tensor's step.
class Expectation {
 public:
  Expectation(const Job& job, std::uint32_t tensor, std::uint32_t step)
      : job_(job), tensor_(tensor), reference_(job.script.tensors[tensor], job.options.network.host_of) {
    for (std::uint32_t s = 0; s <= step; ++s) {
      inputs_.clear();
      before_.clear();
      for (int r = 0; r < job.size; ++r) {
        inputs_.push_back(job.input_of(r, s, tensor));
        before_.push_back(reference_.held_back(r));
      }
      result_ = reference_.step(inputs_, s);
    }
  }

  void check(int rank, const Program::End& end, Found& found) const {
    const auto say = [&](const auto&... parts) {
      found.failures.push_back(detail::concat("seed ", job_.seed, ", rank ", rank, ", tensor ", tensor_, ", step ",
                                              end.step, ": ", parts...));
    };
    const Range own = job_.own(rank, tensor_);
    if (end.status == Status::ok && !holds(end.output, result_, own)) say("the result is not the reference's");
    std::vector<float> residual = end.residual;
    if (!reference_.holds_back() && !residual.empty()) say("there is a residual");
    residual.resize(static_cast<std::size_t>(whole().end), 0.0F);
    for (const Range& range : job_.partitions_of(tensor_)) {
      const bool sent_only = range.begin < own.begin || range.end > own.end;
      const bool delivered =
          sent_only ? same(residual, reference_.held_back(rank), range) : holds(end.output, result_, range);
      if (!delivered && !untouched(rank, end.output, range)) say("an output that is neither final nor untouched");
      if (delivered && !same(residual, reference_.held_back(rank), range)) say("delivered, but the residual is not");
      const bool kept = same(residual, before_[index(rank)], range);
      if (!delivered && !kept) check_given_back(rank, residual, range, say);
      if (end.status != Status::ok) ++found.partitions[delivered ? 0 : kept ? 2 : 1];
      if (end.status == Status::ok && !delivered) say("ended well but undelivered");
    }
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  Range whole() const { return {0, job_.script.tensors[tensor_].signature.shape.numel()}; }
  DType dtype() const { return job_.script.tensors[tensor_].signature.dtype; }

  std::span<const std::byte> part(const Blob& blob, const Range& range) const {
    const std::size_t element = size_of(dtype());
    return std::span(blob).subspan(static_cast<std::size_t>(range.begin) * element,
                                   static_cast<std::size_t>(range.size()) * element);
  }
  bool holds(const Blob& output, const Blob& wanted, const Range& range) const {
    return std::ranges::equal(part(output, range), part(wanted, range));
  }
  bool untouched(int rank, const Blob& output, const Range& range) const {
    if (job_.in_place) return holds(output, inputs_[index(rank)], range);
    return std::ranges::all_of(part(output, range), [](std::byte byte) { return byte == std::byte{0xcd}; });
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b, const Range& range) {
    return std::equal(a.begin() + range.begin, a.begin() + range.end, b.begin() + range.begin);
  }

  /// The gradient plus the residual before, but for the units that were not finite.
  template <typename Say>
  void check_given_back(int rank, const std::vector<float>& residual, const Range& range, const Say& say) const {
    // A sum of several ranks' contributions is rounded like what it is: large.
    const bool alone =
        job_.script.tensors[tensor_].plan.topology == "ps" || job_.script.tensors[tensor_].plan.topology == "direct";
    const double tolerance = 0x1.0p-22 * (alone ? 2 : 4 * job_.size);
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
      const auto before = static_cast<double>(before_[index(rank)][i]);
      const double x = reference::read(inputs_[index(rank)].data(), i, dtype()) + before;
      const auto now = static_cast<double>(residual[i]);
      if (std::abs(now - x) <= tolerance || (job_.spoilt >= 0 && now == before)) continue;
      say("element ", i, " of a partition that was not delivered: the residual is ", now, ", was ", before,
          ", and with the gradient it would be ", x);
      return;
    }
  }

  const Job& job_;
  std::uint32_t tensor_;
  TensorReference reference_;
  std::vector<Blob> inputs_;
  std::vector<std::vector<float>> before_;  // residuals, per rank
  Blob result_;
};

/// How long the job of this seed takes if nothing breaks.
Nanoseconds undisturbed(const Case& what, std::uint64_t seed) {
  Job job(what, seed);
  return Program(job).run().finished;
}

void verify(const Case& what, std::uint64_t seed, Found& found) {
  Job job(what, seed);
  job.add_fault(undisturbed(what, seed));
  Program program(job);
  const VirtualOutcome outcome = program.run();
  if (outcome.hung) found.failures.push_back(detail::concat("seed ", seed, " hung ", outcome.waiting));
  std::map<std::pair<std::uint32_t, std::uint32_t>, Expectation> expectations;
  for (const auto& [where, end] : program.ends) {
    const auto [rank, tensor] = where;
    if (!program.alive(rank)) continue;
    if (end.output != program.output(rank, tensor) || end.residual != program.residual(rank, tensor))
      found.failures.push_back(detail::concat("seed ", seed, ", rank ", rank, ": something changed after the end"));
    expectations.try_emplace({tensor, end.step}, job, tensor, end.step).first->second.check(rank, end, found);
  }
}

/// The plan drops onebit in the second step, so what it left behind joins the input; then something breaks.
void verify_carried(const std::string& topology, std::uint64_t seed, Found& found) {
  Job job({topology, "onebit"}, seed);
  auto& tensors = job.script.tensors;
  tensors[0].signature.dtype = DType::float32;
  tensors[1] = tensors[0];  // of the same name
  tensors[1].signature.compression = tensors[1].plan.codec = "terngrad(bits=8)";
  job.spoilt = -1;
  const auto n = static_cast<std::size_t>(job.size);
  job.script.steps = {std::vector<std::vector<Submission>>(n, {{0}}), std::vector<std::vector<Submission>>(n, {{1}})};
  const VirtualOutcome usual = Program(job).run();
  job.add_fault(usual.finished - usual.step_ends[0]);
  job.script.faults[0].at += usual.step_ends[0];
  Program program(job);
  if (const VirtualOutcome outcome = program.run(); outcome.hung) found.failures.push_back("hung " + outcome.waiting);

  TensorReference first(tensors[0], job.options.network.host_of);
  TensorReference second(tensors[1], job.options.network.host_of);
  std::vector<Blob> inputs, sums;
  for (int r = 0; r < job.size; ++r) {
    inputs.push_back(job.input_of(r, 0, 0));
    sums.push_back(job.input_of(r, 1, 1));
  }
  first.step(inputs, 0);
  for (int r = 0; r < job.size; ++r) {
    auto* const sum = reinterpret_cast<float*>(sums[static_cast<std::size_t>(r)].data());
    for (std::size_t i = 0; i < first.residual(r).size(); ++i) sum[i] += first.residual(r)[i];
  }
  const Blob result = second.step(sums, 1);
  for (const auto& [where, end] : program.ends) {
    const auto [rank, tensor] = where;
    if (tensor != 1 || end.status == Status::ok || !program.alive(rank)) continue;
    const std::vector<float>& held_back = first.residual(rank);
    for (const Range& range : job.partitions_of(1)) {
      const auto begin = 4 * static_cast<std::size_t>(range.begin);
      const bool delivered = std::memcmp(end.output.data() + begin, result.data() + begin,
                                         4 * static_cast<std::size_t>(range.size())) == 0;
      ++found.partitions[delivered ? 0 : 1];
      for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
        const float residual = end.residual.empty() ? 0.0F : end.residual[i];
        if (residual == (delivered ? 0.0F : held_back[i])) continue;
        found.failures.push_back(detail::concat("seed ", seed, ", rank ", rank, ", element ", i, ": the residual is ",
                                                residual, " and was ", held_back[i],
                                                delivered ? ", and it was delivered" : ", and it was not delivered"));
        break;
      }
    }
  }
}

TEST(AbortAfterANewPlan, ReturnsWhatHasJoinedTheInputAndWasNotDelivered) {
  Found found;
  for (const char* topology : {"ps", "two_level"}) {
    for (std::uint64_t seed = 1; seed <= 30 && found.failures.size() < 3; ++seed) verify_carried(topology, seed, found);
  }
  for (const std::string& failure : found.failures) ADD_FAILURE() << failure;
  EXPECT_GT(found.partitions[0], 20);
  EXPECT_GT(found.partitions[1], 20);
}

class Abort : public testing::TestWithParam<Case> {};

TEST_P(Abort, DeliversGivesBackOrNeverTakes) {
  Found found;
  for (std::uint64_t seed = 1; seed <= 40 && found.failures.size() < 3; ++seed) verify(GetParam(), seed, found);
  for (const std::string& failure : found.failures) ADD_FAILURE() << failure;
  const auto [delivered, given_back, never_taken] = found.partitions;
  std::cout << "partitions of aborted operations: " << delivered << " delivered, " << given_back << " given back, "
            << never_taken << " never taken\n";
  const bool feedback = make_codec(GetParam().codec)->info().feedback != Feedback::none;
  // One partition is seldom the one that ends first. The unit of topk is longer than these gradients.
  const bool is_cut = !make_codec(GetParam().codec)->info().whole && !GetParam().codec.starts_with("topk");
  EXPECT_GT(delivered, is_cut ? 20 : 0);
  EXPECT_GT(never_taken, 20);
  EXPECT_GT(given_back, feedback ? 20 : -1);
}

INSTANTIATE_TEST_SUITE_P(
    , Abort,
    testing::Values(Case{"ps", "onebit"}, Case{"ps", "terngrad(bits=2)"}, Case{"ps", "test_tworound"},
                    Case{"two_level", "onebit"}, Case{"two_level", "terngrad(bits=2)"},
                    Case{"two_level", "test_tworound"}, Case{"ring", "onebit"}, Case{"direct", "onebit"},
                    Case{"direct", "test_topk(ratio=0.1)"}, Case{"ps", "test_state(gather=0)"},
                    Case{"two_level", "test_state(gather=0)"}, Case{"ring", "test_state(gather=0)"},
                    Case{"direct", "test_state(gather=1)"}, Case{"ps", "test_lowrank(start=0)"},
                    Case{"direct", "test_lowrank(start=0)"}, Case{"ps", "onebit(feedback_decay=0.5)"},
                    Case{"two_level", "onebit(feedback_decay=0.5)"}, Case{"ring", "onebit(feedback_decay=0.5)"},
                    Case{"direct", "topk(feedback_decay=0.5)"},
                    Case{"ps", "powersgd(start_step=0, feedback_decay=0.5)"},
                    Case{"direct", "powersgd(start_step=0, feedback_decay=0.5)"},
                    Case{"ps", "onebit", OpKind::reducescatter}, Case{"ps", "terngrad(bits=2)", OpKind::reducescatter}),
    [](const auto& what) {
      const std::string& codec = what.param.codec;
      const bool scatters = what.param.kind == OpKind::reducescatter;
      return detail::concat(scatters ? name_of(what.param.kind) : std::string_view(what.param.topology), '_',
                            codec.substr(0, codec.find('(')), codec.find("decay") < codec.size() ? "_decay" : "");
    });

}  // namespace
}  // namespace casync::test
