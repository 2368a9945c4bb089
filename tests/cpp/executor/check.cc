#include "executor/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "casync/error.hpp"
#include "codec/reference.hpp"
#include "executor/launch_order.hpp"
#include "executor/reference.hpp"

namespace casync::test {
namespace {

constexpr std::size_t kFailuresShown = 6;
constexpr Nanoseconds kMillisecond = 1'000'000;

/// The ranks' programs of one schedule: known inputs, checked outputs.
class Program final : public VirtualProgram {
 public:
  Program(const Schedule& schedule, Verification& result) : schedule_(schedule), result_(result) {
    const auto n = static_cast<std::size_t>(schedule.size);
    for (const VirtualTensor& tensor : schedule.script.tensors) {
      references_.emplace_back(tensor, schedule.options.network.host_of);
      const std::size_t element = size_of(tensor.signature.dtype);
      Mass& mass = masses_.emplace_back();
      if (references_.back().holds_back() && tensor.signature.dtype == DType::float32) {
        mass.inputs.assign(static_cast<std::size_t>(tensor.signature.shape.numel()), 0);
        mass.results = mass.inputs;
        // Sums of 16 bits round at each hop, and nobody keeps what that loses.
        const auto codec = make_codec(tensor.plan.codec);
        if (codec->info().rounds.back().element == DType::float16) mass.rounding = 0x1p-11 * schedule.size;
      }
      for (std::uint32_t r = 0; r < n; ++r) {
        Place& place = places_.emplace_back();
        std::int64_t numel = tensor.signature.shape.numel();
        if (tensor.signature.kind == OpKind::reducescatter) numel = references_.back().rows_of(r).size();
        place.output.resize(static_cast<std::size_t>(numel) * element);
      }
    }
    for (std::uint32_t s = 0; s < schedule.script.steps.size(); ++s) expect_step(s);
  }

  Buffers buffers(Rank rank, std::uint32_t step, std::uint32_t tensor) override {
    Place& mine = place(rank, tensor);
    const Blob& input = step_of(step, tensor).inputs[rank];
    if (is_made(tensor)) return {input.data(), nullptr};
    if (in_place(tensor)) {
      std::copy(input.begin(), input.end(), mine.output.begin());
      return {mine.output.data(), mine.output.data()};
    }
    std::fill(mine.output.begin(), mine.output.end(), std::byte{0xcd});
    mine.input = input;
    return {mine.input.data(), mine.output.data()};
  }

  void ended(Rank rank, std::uint32_t step, std::uint32_t tensor, Operation& operation) override {
    const VirtualTensor& what = schedule_.script.tensors[tensor];
    Step& expected = step_of(step, tensor);
    const auto say = [&](const auto&... parts) {
      fail(detail::concat("rank ", rank, ", step ", step, ", ", what.name, ": ", parts...));
    };
    if (operation.status != Status::ok) {
      check_error(operation, expected, say);
      return;
    }
    ++result_.operations;
    if (expected.disagreed) {
      say("ended well although the ranks disagreed");
      return;
    }
    if (what.signature.kind == OpKind::join) {
      if (last_.empty()) last_ = operation.result_rows;
      if (operation.result_rows != last_ || last_.size() != 1)
        say("says that another rank was last");
      else if (waited_for(static_cast<int>(last_.front())))
        say("says that rank ", last_.front(), " was last");
      return;
    }
    const auto own = rank;
    const Blob& got = is_made(tensor) ? operation.result : place(rank, tensor).output;
    if (what.signature.op == ReduceOp::adasum) settle(expected, got, what.signature.dtype);
    const Blob& wanted = expected.results[own];
    if (!is_made(tensor) && !in_place(tensor) && place(rank, tensor).input != expected.inputs[own]) {
      say("the input was changed");
    }
    if (got.size() != wanted.size()) {
      say("the result has ", got.size(), " bytes instead of ", wanted.size());
      return;
    }
    if (is_made(tensor) && operation.result_rows != expected.rows[own]) say("it is told other rows than were given");
    const bool nonfinite = holds_nonfinite(wanted, what.signature.dtype);
    if (operation.nonfinite != nonfinite && !expected.may_hide_nonfinite) {
      say(nonfinite ? "NaN or Inf was not reported" : "NaN or Inf was reported where there is none");
    }
    if (got == wanted) return;
    const std::size_t element = size_of(what.signature.dtype);
    for (std::size_t i = 0; i < got.size() / element; ++i) {
      const double a = reference::read(got.data(), i, what.signature.dtype);
      const double b = reference::read(wanted.data(), i, what.signature.dtype);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      say("element ", i, " is ", a, " and must be ", b);
      return;
    }
  }

  void check_kept(VirtualWorld& world) {
    for (std::size_t t = 0; t < schedule_.script.tensors.size(); ++t) {
      const VirtualTensor& tensor = schedule_.script.tensors[t];
      const TensorReference& reference = references_[t];
      if (tensor.signature.shape.numel() == 0 || !ran_[t]) continue;
      std::vector<double> kept(static_cast<std::size_t>(tensor.signature.shape.numel()), 0);
      for (int r = 0; r < schedule_.size; ++r) {
        static const GradientState kNothing;
        const GradientState* found = world.kept(r, tensor.name);
        if (found == nullptr) found = &kNothing;
        if (reference.keeps_residuals() && !std::ranges::equal(found->residual, reference.residual(r))) {
          fail(detail::concat("rank ", r, ", ", tensor.name, ": the residual is not the reference's"));
          return;
        }
        const auto equal = [](const FloatArray& a, const std::vector<float>& b) { return std::ranges::equal(a, b); };
        if (!std::ranges::equal(found->state().values, reference.state(r), equal)) {
          fail(detail::concat("rank ", r, ", ", tensor.name, ": the codec's state is not the reference's"));
          return;
        }
        for (std::size_t i = 0; i < kept.size(); ++i) kept[i] += static_cast<double>(reference.held_back(r)[i]);
      }
      check_mass(t, kept);
    }
  }

  void fail(const std::string& what) {
    if (result_.failures.size() < kFailuresShown) result_.failures.push_back(what);
  }

 private:
  struct Place {
    Blob input, output;
  };
  struct Step {
    std::vector<Blob> inputs;
    std::vector<Blob> results;                    // per rank
    std::vector<std::vector<std::int64_t>> rows;  // per rank: how many each rank gave it (allgather, alltoall)
    Blob result;                                  // of all ranks that reduce
    bool nonfinite = false;
    bool may_hide_nonfinite = false;  // min and max of NaN, integers
    bool disagreed = false;
    bool settled = false;  // Adasum: the first rank's result is known
  };
  struct Mass {  // per element, over all steps; empty if nothing is to be conserved
    std::vector<double> inputs, results;
    double largest = 0;
    bool finite = true;
    double rounding = 1e-4;  // by the largest result
  };

  /// Whether the runtime makes the memory for the result.
  bool is_made(std::uint32_t tensor) const {
    const OpKind kind = schedule_.script.tensors[tensor].signature.kind;
    return kind == OpKind::allgather || kind == OpKind::alltoall;
  }
  bool in_place(std::uint32_t tensor) const {
    return schedule_.in_place[tensor] && schedule_.script.tensors[tensor].signature.kind != OpKind::reducescatter;
  }
  static bool holds_nonfinite(const Blob& blob, DType dtype) {
    for (std::size_t i = 0; is_floating(dtype) && i < blob.size() / size_of(dtype); ++i) {
      if (!std::isfinite(reference::read(blob.data(), i, dtype))) return true;
    }
    return false;
  }

  /// The reference of an Adasum adds in another order. The first rank's result must be near it, and is what all ranks
  /// must have to the bit.
  static void settle(Step& step, const Blob& got, DType dtype) {
    if (std::exchange(step.settled, true) || got.size() != step.result.size()) return;
    const double relative = dtype == DType::float32    ? 0x1p-23
                            : dtype == DType::bfloat16 ? 0x1p-7
                            : dtype == DType::float16  ? 0x1p-10
                                                       : 0;
    const double absolute = dtype == DType::float16 ? 0x1p-24 : 1e-11;
    for (std::size_t i = 0; i < got.size() / size_of(dtype); ++i) {
      const double a = reference::read(got.data(), i, dtype);
      const double b = reference::read(step.result.data(), i, dtype);
      const bool near = std::abs(a - b) <= relative * std::abs(b) + absolute;
      if (!near && !(std::isnan(a) && std::isnan(b))) return;
    }
    for (Blob& result : step.results) result = got;
  }

  Place& place(Rank rank, std::uint32_t tensor) {
    return places_[tensor * static_cast<std::size_t>(schedule_.size) + rank];
  }
  Step& step_of(std::uint32_t step, std::uint32_t tensor) {
    return steps_[step * schedule_.script.tensors.size() + tensor];
  }

  /// Who submits what in this step, and what must come of it.
  void expect_step(std::uint32_t s) {
    const auto& tensors = schedule_.script.tensors;
    ran_.resize(tensors.size(), false);
    const auto& ranks = schedule_.script.steps[s];
    for (std::uint32_t t = 0; t < tensors.size(); ++t) {
      Step& step = steps_.emplace_back();
      const Signature& signature = tensors[t].signature;
      std::vector<Submission> submitted;
      for (int r = 0; r < schedule_.size; ++r) {
        const auto& own = ranks[static_cast<std::size_t>(r)];
        const auto at = std::ranges::find(own, t, &Submission::tensor);
        const bool stands_in = at == own.end() && schedule_.has_joined(s, r) && goes_on_without(signature.kind);
        step.inputs.push_back(at != own.end() ? input_of(r, s, t, *at) : stands_in ? zeros_of(signature) : Blob{});
        if (at != own.end() || stands_in) submitted.push_back(stands_in ? Submission{} : *at);
      }
      if (signature.kind == OpKind::join) continue;  // ranks join in different steps
      if (submitted.size() < static_cast<std::size_t>(schedule_.size)) {
        step.disagreed = true;
        continue;
      }
      ran_[t] = true;
      const auto joined = schedule_.joined.empty() ? std::vector<bool>{} : schedule_.joined[s];
      step.result = references_[t].step(step.inputs, steps_run_[tensors[t].name]++, joined);
      for (std::uint32_t r = 0; r < submitted.size(); ++r) expect_result(r, t, submitted, step);
      step.nonfinite = holds_nonfinite(step.result, signature.dtype);
      step.may_hide_nonfinite = !reduces(signature.kind) || schedule_.nonfinite_step[t] == s;
      check_near(s, t, step);
      add_mass(t, step);
    }
  }

  /// Whether another rank joined later for sure: after an operation that could not end without this one's join. What is
  /// refused while any rank has joined waits for no other.
  bool waited_for(int joined) const {
    const auto waits = [&](const Submission& one) {
      return goes_on_without(schedule_.script.tensors[one.tensor].signature.kind);
    };
    for (std::uint32_t s = 0; s < schedule_.joined.size(); ++s) {
      if (!schedule_.has_joined(s, joined)) continue;
      for (int r = 0; r < schedule_.size; ++r) {
        const auto& submitted = schedule_.script.steps[s][static_cast<std::size_t>(r)];
        if (!schedule_.has_joined(s, r) && std::ranges::any_of(submitted, waits)) return true;
      }
    }
    return false;
  }

  static Blob zeros_of(const Signature& signature) {
    return Blob(static_cast<std::size_t>(signature.shape.numel()) * size_of(signature.dtype));
  }

  /// What rank `r` must have of it in the end.
  void expect_result(std::uint32_t r, std::uint32_t t, const std::vector<Submission>& submitted, Step& step) {
    const Signature& signature = schedule_.script.tensors[t].signature;
    const std::size_t element = size_of(signature.dtype);
    Blob& result = step.results.emplace_back();
    auto& rows = step.rows.emplace_back();
    if (signature.kind == OpKind::reducescatter) {
      const Range own = references_[t].rows_of(r);
      const auto at = [&](std::int64_t i) { return step.result.begin() + i * static_cast<std::ptrdiff_t>(element); };
      result.assign(at(own.begin), at(own.end));
    } else if (signature.kind == OpKind::alltoall) {
      for (std::size_t from = 0; from < submitted.size(); ++from) {
        const auto& splits = submitted[from].splits;
        const auto bytes_of = [&](std::int64_t count) {
          return static_cast<std::ptrdiff_t>(element) * count * signature.shape.cols;
        };
        const auto begin =
            step.inputs[from].begin() + bytes_of(std::accumulate(splits.begin(), splits.begin() + r, std::int64_t{0}));
        result.insert(result.end(), begin, begin + bytes_of(splits[r]));
        rows.push_back(splits[r]);
      }
    } else {
      result = step.result;
      for (const Submission& submission : submitted) rows.push_back(submission.rows);
    }
  }

  /// Uniform in [-1, 1] times a scale of the tensor's own; integers small enough that no sum overflows.
  Blob input_of(Rank rank, std::uint32_t step, std::uint32_t tensor, const Submission& submission) {
    const Signature& signature = schedule_.script.tensors[tensor].signature;
    const auto& splits = submission.splits;
    const std::int64_t given = std::accumulate(splits.begin(), splits.end(), submission.rows);
    const std::int64_t numel = is_made(tensor) ? given * signature.shape.cols : signature.shape.numel();
    Blob blob(static_cast<std::size_t>(numel) * size_of(signature.dtype));
    Dice dice(schedule_.seed * 1'000'003 + tensor * 1009 + step * 101 + static_cast<std::uint64_t>(rank));
    const double scale = std::ldexp(1.0, static_cast<int>(tensor % 5) - 3);
    const bool spoilt = schedule_.nonfinite_step[tensor] == step && rank == tensor % static_cast<Rank>(schedule_.size);
    for (std::size_t i = 0; i < static_cast<std::size_t>(numel); ++i) {
      const auto bits = dice.next();
      double value = static_cast<double>(static_cast<std::int32_t>(bits >> 32U)) * 0x1.0p-31 * scale;
      if (signature.dtype == DType::boolean)
        value = bits % 8 == 0 ? 1 : 0;
      else if (signature.dtype == DType::uint8 || signature.dtype == DType::uint16)
        value = static_cast<double>(bits % 15);
      else if (!is_floating(signature.dtype))
        value = static_cast<double>(static_cast<std::int64_t>(bits % 15) - 7);
      if (signature.dtype == DType::float32) {
        const auto narrow = static_cast<float>(value);
        std::memcpy(blob.data() + 4 * i, &narrow, 4);
      } else {
        reference::write(blob.data(), i, signature.dtype, value);
      }
    }
    if (spoilt && is_floating(signature.dtype) && numel > 0) {
      reference::write(blob.data(), dice.below(static_cast<std::uint64_t>(numel)), signature.dtype,
                       dice.chance(50) ? NAN : INFINITY);
    }
    return blob;
  }

  /// The reference itself, held against sums in double: float32 and float64, uncompressed.
  void check_near(std::uint32_t s, std::uint32_t t, const Step& step) {
    const Signature& signature = schedule_.script.tensors[t].signature;
    const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
    if (!reduces(signature.kind) || !sums || references_[t].compressed() || step.nonfinite) return;
    if (signature.dtype != DType::float32 && signature.dtype != DType::float64) return;
    const double factor = 1.0 / (signature.op == ReduceOp::average ? schedule_.size : 1);
    for (std::size_t i = 0; i < static_cast<std::size_t>(signature.shape.numel()); ++i) {
      double sum = 0;
      for (const Blob& input : step.inputs) sum += reference::read(input.data(), i, signature.dtype);
      const double error = reference::read(step.result.data(), i, signature.dtype) - sum * factor;
      if (std::abs(error) <= 1e-5 * schedule_.size) continue;
      fail(detail::concat("step ", s, ", tensor ", t, ", element ", i, ": the reference is ", error,
                          " off the sum in double"));
      return;
    }
  }

  void add_mass(std::uint32_t t, const Step& step) {
    Mass& mass = masses_[t];
    const Signature& signature = schedule_.script.tensors[t].signature;
    mass.finite &= !step.nonfinite && schedule_.nonfinite_step[t] < 0;
    const double to_sum = signature.op == ReduceOp::average ? schedule_.size : 1.0;
    for (std::size_t i = 0; i < mass.inputs.size(); ++i) {
      for (const Blob& input : step.inputs) mass.inputs[i] += reference::read(input.data(), i, DType::float32);
      mass.results[i] += to_sum * reference::read(step.result.data(), i, DType::float32);
      mass.largest = std::max(mass.largest, std::abs(mass.results[i]));
    }
  }

  void check_mass(std::size_t t, const std::vector<double>& kept) {
    const Mass& mass = masses_[t];
    // What an owner that has joined loses when it encodes again is kept nowhere.
    if (!mass.finite || !schedule_.joined.empty()) return;
    for (std::size_t i = 0; i < mass.inputs.size(); ++i) {
      const double lost = mass.inputs[i] - mass.results[i] - kept[i];
      if (std::abs(lost) <= mass.rounding * (1 + mass.largest)) continue;
      fail(detail::concat(schedule_.script.tensors[t].name, ", element ", i, ": ", lost,
                          " of the inputs is neither in the results nor in "
                          "the residuals"));
      return;
    }
  }

  template <typename Say>
  void check_error(const Operation& operation, const Step& expected, const Say& say) {
    ++result_.errors;
    if (operation.text.empty()) say("failed without a text");
    if (operation.status == Status::mismatch && expected.disagreed) return;
    // A rank that went on after a disagreement may find the others gone; whoever breaks down must be named.
    const bool named = std::any_of(schedule_.culprits.begin(), schedule_.culprits.end(), [&](int culprit) {
      return operation.text.find("rank " + std::to_string(culprit)) != std::string::npos;
    });
    if (!schedule_.breaks || !named) say("failed: ", operation.text);
  }

  const Schedule& schedule_;
  Verification& result_;
  std::vector<TensorReference> references_;
  std::vector<Mass> masses_;
  std::vector<Place> places_;
  std::vector<Step> steps_;
  std::vector<bool> ran_;
  std::vector<std::int64_t> last_;                  // the rank that was the last to join
  std::map<std::string, std::uint32_t> steps_run_;  // what was refused is not counted
};

}  // namespace

namespace {

/// No wake-up is lost: it would be made up for by the end of a sleep, which may be 100 ms away. The background thread
/// rests at most three times on end, for 1 ms each, before what has come has a turn. A rank that is alone may rest as
/// long as its program submits.
void check_delays(const Schedule& schedule, const VirtualThreads::Delays& delays, Program& program) {
  if (schedule.size == 1) return;
  // One thread is in the middle of a turn, and another one wakes up, which each take up to `notice`.
  const Nanoseconds awake = 3 * kMillisecond + 4 * schedule.options.notice;
  const auto check = [&](Nanoseconds longest, Nanoseconds limit, const char* what) {
    if (longest > limit) program.fail(detail::concat(what, " waited ", longest, " ns for a turn"));
  };
  check(delays.told, awake, "what was submitted or rang");
  check(delays.silent, 20 * kMillisecond + awake, "what came without ringing");
  check(delays.due, awake, "what the Engine was to do at its own time");
  if (delays.done > awake)
    program.fail(detail::concat("what was over was seen ", delays.done, " ns later by the thread that waited"));
}

}  // namespace

Verification verify(const Schedule& schedule) {
  Verification result;
  Program program(schedule, result);
  try {
    VirtualWorld world(schedule.options, schedule.script, &program);
    std::deque<LaunchOrder> orders;
    for (Rank r = 0; r < static_cast<Rank>(schedule.script.on_stream.size()); ++r) {
      world.driver(r).watched_by(orders.emplace_back(world.engine(r)));
    }
    const VirtualOutcome outcome = world.run();
    for (const LaunchOrder& order : orders) {
      if (!order.fault().empty()) program.fail(order.fault());
    }
    result.turns = outcome.turns;
    if (outcome.hung) program.fail("hung " + outcome.waiting);
    check_delays(schedule, outcome.delays, program);
    if (!schedule.breaks && !outcome.hung) {
      for (int r = 0; r < schedule.size; ++r) {
        if (world.engine(r).admission().used() != 0) {
          program.fail(detail::concat("rank ", r, " holds ", world.engine(r).admission().used(), " bytes at the end"));
        }
      }
      program.check_kept(world);
    }
  } catch (const std::exception& error) {
    program.fail(detail::concat("threw: ", error.what()));
  }
  return result;
}

Verification verify_seeds(std::uint64_t first, std::uint64_t count, std::size_t most) {
  Verification all;
  const Distributions distributions;
  for (std::uint64_t seed = first; seed < first + count && all.failures.size() < most; ++seed) {
    const Schedule schedule = draw(seed, distributions);
    const Verification one = verify(schedule);
    all.operations += one.operations;
    all.errors += one.errors;
    all.turns += one.turns;
    if (one.failures.empty()) continue;
    std::string text = schedule.print();
    for (const std::string& failure : one.failures) text += "\n  FAILED: " + failure;
    text += detail::concat("\n  replay: CASYNC_SEED=", seed, " test_schedules");
    all.failures.push_back(std::move(text));
  }
  return all;
}

}  // namespace casync::test
