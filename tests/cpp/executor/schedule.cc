#include "executor/schedule.hpp"

#include <algorithm>
#include <sstream>

#include "casync/error.hpp"

namespace casync::test {
namespace {

template <typename T>
std::string list_of(const std::vector<T>& values) {
  std::ostringstream out;
  for (const T& value : values) out << ' ' << value;
  return out.str();
}

constexpr Nanoseconds kMillisecond = 1'000'000;

Shape shape_of(Dice& dice, const Distributions& from) {
  const std::int64_t numel = dice.one_of(from.numel);
  const std::int64_t cols = dice.one_of(from.cols);
  return numel < cols ? Shape{numel, 1} : Shape{numel / cols, cols};
}

Signature signature_of(Dice& dice, const Distributions& from, const Shape& shape, const std::string& codec) {
  Signature signature;
  const bool identity = codec == "none";
  signature.shape = shape;
  signature.dtype = dice.one_of(identity ? from.uncompressed : from.compressed);
  signature.op = dice.chance(70) ? ReduceOp::average : ReduceOp::sum;
  if (is_floating(signature.dtype) && takes_adasum(make_codec(codec)->info()) && dice.chance(from.adasum))
    signature.op = ReduceOp::adasum;
  if (identity && dice.chance(from.odd_op)) {
    signature.op = dice.one_of(std::vector<ReduceOp>{ReduceOp::min, ReduceOp::max, ReduceOp::product});
    if (signature.op == ReduceOp::product && signature.dtype != DType::float64) signature.op = ReduceOp::max;
  } else if (is_floating(signature.dtype) && signature.dtype != DType::float64 && dice.chance(from.scaled)) {
    signature.prescale = 0.5F;
    signature.postscale = 3.0F;
  }
  signature.dims = detail::concat("(", shape.rows, ", ", shape.cols, ")");
  signature.compression = codec;
  return signature;
}

GradientPlan plan_of(Dice& dice, const Signature& signature, int size, const std::string& codec) {
  const auto n = static_cast<std::uint32_t>(size);
  GradientPlan plan;
  plan.codec = codec;
  plan.partitions = dice.one_of(std::vector<std::uint32_t>{1, 3, n, 2 * n});
  plan.first_owner = static_cast<std::uint32_t>(dice.below(n));
  const CodecInfo info = make_codec(codec)->info();
  if (info.whole) plan.partitions = 1;
  plan.topology = dice.one_of(kTopologies);
  const auto bytes = static_cast<std::size_t>(signature.shape.numel()) * size_of(signature.dtype);
  if (dice.chance(30)) {  // as "auto" decides
    const bool small = bytes <= 4096 || gathers(info);
    plan.topology = small ? "direct" : "ps";
    if (small) plan.partitions = 1;
  }
  if (signature.op == ReduceOp::adasum) {
    plan.partitions = 1;
    if (plan.topology != "direct") plan.topology = "ps";
  }
  // To all others at once: with 16 ranks and 32 partitions a schedule takes a minute.
  if (plan.topology == "direct") plan.partitions = std::min(plan.partitions, 8U);
  return plan;
}

VirtualTensor tiny_tensor(Dice& dice, const Distributions& from, const std::string& name) {
  VirtualTensor tensor;
  tensor.name = name;
  tensor.signature = signature_of(dice, from, {1 + static_cast<std::int64_t>(dice.below(64)), 1}, "none");
  return tensor;
}

VirtualTensor tensor_of(Dice& dice, const Distributions& from, int size, const std::string& name) {
  VirtualTensor tensor;
  tensor.name = name;
  const Shape shape = shape_of(dice, from);
  if (dice.chance(from.other_kind)) {
    tensor.signature = signature_of(dice, from, shape, "none");
    tensor.signature.op = ReduceOp::sum;
    tensor.signature.prescale = tensor.signature.postscale = 1.0F;
    tensor.signature.kind =
        dice.one_of(std::vector<OpKind>{OpKind::allgather, OpKind::broadcast, OpKind::barrier, OpKind::alltoall});
    tensor.signature.root = static_cast<std::int32_t>(dice.below(static_cast<std::uint64_t>(size)));
    if (tensor.signature.kind == OpKind::allgather || tensor.signature.kind == OpKind::alltoall)
      tensor.signature.shape.rows = std::min<std::int64_t>(40, shape.rows);
    if (tensor.signature.kind == OpKind::barrier) tensor.signature.shape = {};
    tensor.plan = plan_of(dice, tensor.signature, size, "none");
    return tensor;
  }
  std::string codec = dice.one_of(from.codecs);
  if (shape.numel() < from.min_numel && !dice.chance(16)) codec = "none";
  if (!make_codec(codec)->applies(shape, 0)) codec = "none";
  tensor.signature = signature_of(dice, from, shape, codec);
  tensor.plan = plan_of(dice, tensor.signature, size, codec);
  const bool sums = tensor.signature.op == ReduceOp::average || tensor.signature.op == ReduceOp::sum;
  if (sums && scatters(codec) && dice.chance(from.scattered)) {
    tensor.signature.kind = OpKind::reducescatter;
    tensor.plan.topology = "ps";
  }
  return tensor;
}

/// From a step on another plan: with the codec, where there was none before, or along another way. Steps are counted of
/// what a codec could carry.
void draw_next_plan(Dice& dice, int size, VirtualTensor& tensor) {
  const Signature& signature = tensor.signature;
  const bool sums = signature.op == ReduceOp::average || signature.op == ReduceOp::sum;
  if (!reduces(signature.kind) || !sums || !is_floating(signature.dtype)) return;
  tensor.then = plan_of(dice, tensor.signature, size, tensor.plan.codec);
  if (tensor.signature.kind == OpKind::reducescatter) tensor.then->topology = tensor.plan.topology;
  if (dice.chance(50)) tensor.plan.codec = "none";
  tensor.plan.until = 1 + static_cast<std::uint32_t>(dice.below(3));
}

void draw_hosts(Dice& dice, Schedule& schedule) {
  auto& host_of = schedule.options.network.host_of;
  std::uint32_t host = 0;
  const bool alone = dice.chance(50);
  for (int m = 0; m < schedule.size; ++m) {
    if (m > 0 && (alone || dice.chance(40))) ++host;
    host_of.push_back(host);
  }
  if (!alone && dice.chance(30)) {  // ranks of a host need not be neighbours
    for (std::size_t i = host_of.size(); i > 1; --i) std::swap(host_of[i - 1], host_of[dice.below(i)]);
  }
}

void draw_options(Dice& dice, const Distributions& from, Schedule& schedule) {
  VirtualOptions& options = schedule.options;
  options.seed = dice.next();
  options.network.between = {dice.one_of(from.bytes_per_second), dice.one_of(from.latency)};
  options.network.within = {dice.one_of(from.bytes_per_second) * 8, dice.one_of(from.latency) / 4};
  options.network.jitter = dice.one_of(from.jitter);
  if (dice.chance(30)) {
    for (int h = 0; h < schedule.size; ++h) options.network.host_speed.push_back(dice.chance(25) ? 0.2 : 1.0);
  }
  options.workers.threads = 1 + static_cast<int>(dice.below(3));
  options.workers.seconds_per_byte = dice.chance(50) ? 1e-10 : 1e-8;
  options.engine.pool_bytes = dice.one_of(from.pool_bytes);
  options.engine.inline_bytes = dice.one_of(from.inline_bytes);
  options.engine.eager_bytes = dice.one_of(from.eager_bytes);
  options.engine.ready_interval = dice.one_of(from.ready_interval);
  options.engine.at_once_bytes = dice.one_of(from.at_once_bytes);
  options.engine.batch_bytes = dice.one_of(from.batch_bytes);
  options.driver.session_tag = static_cast<std::uint32_t>(dice.below(1000));
  options.notice = dice.one_of(from.notice);
  options.ticks = dice.chance(from.ticks);
  options.threads = dice.chance(from.threads);
  if (dice.chance(from.global_policy)) {
    options.coordinator.policy = "global";
  }
}

void draw_steps(Dice& dice, const Distributions& from, Schedule& schedule) {
  const auto tensors = static_cast<std::uint32_t>(schedule.script.tensors.size());
  const Nanoseconds spread = dice.one_of(from.spread);
  const bool same_order = dice.chance(from.same_order);
  const auto steps = 1 + dice.below(static_cast<std::uint64_t>(from.steps_most));
  for (std::uint64_t s = 0; s < steps; ++s) {
    auto& ranks = schedule.script.steps.emplace_back();
    const Nanoseconds late = dice.one_of(from.late);
    const auto who = dice.below(static_cast<std::uint64_t>(schedule.size));
    const std::uint64_t order = dice.next();
    for (int r = 0; r < schedule.size; ++r) {
      auto& submissions = ranks.emplace_back();
      Dice own(same_order ? order : dice.next());
      for (std::uint32_t t = 0; t < tensors; ++t) {
        const auto after = static_cast<Nanoseconds>(own.below(static_cast<std::uint64_t>(spread) + 1));
        const Signature& signature = schedule.script.tensors[t].signature;
        Submission submission{t, after + (static_cast<std::uint64_t>(r) == who ? late : 0)};
        const auto draw_rows = [&] {
          return static_cast<std::int64_t>(dice.below(static_cast<std::uint64_t>(signature.shape.rows) + 1));
        };
        if (signature.kind == OpKind::allgather) submission.rows = draw_rows();
        for (int to = 0; to < schedule.size && signature.kind == OpKind::alltoall; ++to)
          submission.splits.push_back(dice.chance(30) ? 0 : draw_rows());
        submissions.push_back(std::move(submission));
      }
    }
  }
}

/// Ranks keep few operations. There are more steps than were drawn, and tensors whose shape changes between steps.
void draw_evictions(Dice& dice, const Distributions& from, Schedule& schedule) {
  auto& [tensors, steps, faults, leave_after, on_stream, by_lane, forgets] = schedule.script;
  LeastUsed::Limits& kept = schedule.options.engine.kept;
  kept.first = dice.one_of(from.kept);
  kept.most = kept.first + (dice.chance(30) ? dice.below(4) : 0);
  if (dice.chance(50)) forgets = 0.3;
  std::int64_t elements = 0;
  for (const VirtualTensor& tensor : tensors) elements += std::max<std::int64_t>(tensor.signature.shape.numel(), 1000);
  const std::int64_t most = std::min<std::int64_t>(10, from.work_most / 2 / elements / schedule.size);
  for (std::int64_t more = most - static_cast<std::int64_t>(steps.size()); more > 0; --more)
    steps.push_back(std::vector(dice.one_of(steps)));
  const auto drawn = static_cast<std::uint32_t>(tensors.size());
  for (std::uint32_t t = 0; t < drawn; ++t) {
    const VirtualTensor tensor = tensors[t];
    const bool may_change = reduces(tensor.signature.kind) || tensor.signature.kind == OpKind::broadcast;
    if (!may_change || tensor.then || !make_codec(tensor.plan.codec)->info().identity || !dice.chance(from.shapes))
      continue;
    std::vector<std::uint32_t> shapes{t};
    for (auto more = 1 + dice.below(3); more > 0; --more) {
      shapes.push_back(static_cast<std::uint32_t>(tensors.size()));
      VirtualTensor& other = tensors.emplace_back(tensor);
      other.signature.shape.rows += static_cast<std::int64_t>(more);
      other.signature.dims = detail::concat("(", other.signature.shape.rows, ", ", other.signature.shape.cols, ")");
      schedule.in_place.push_back(dice.chance(from.in_place));
      schedule.nonfinite_step.push_back(-1);
    }
    for (auto& step : steps) {
      const std::uint32_t shape = dice.one_of(shapes);
      for (auto& submissions : step) {
        for (Submission& submission : submissions) {
          if (submission.tensor == t) submission.tensor = shape;
        }
      }
    }
  }
}

/// In one step one rank submits a tensor of the same name on other terms.
void draw_disagreement(Dice& dice, Schedule& schedule) {
  if (schedule.size < 2 || schedule.script.tensors.empty()) return;
  auto& tensors = schedule.script.tensors;
  const auto which = static_cast<std::uint32_t>(dice.below(tensors.size()));
  if (!reduces(tensors[which].signature.kind)) return;
  VirtualTensor other = tensors[which];
  other.signature.dims += " of another rank";
  if (dice.chance(50)) other.signature.shape.rows += 1;
  const auto variant = static_cast<std::uint32_t>(tensors.size());
  tensors.push_back(other);
  schedule.in_place.push_back(true);
  schedule.nonfinite_step.push_back(-1);
  auto& ranks = dice.one_of(schedule.script.steps);
  auto& step = schedule.script.steps[static_cast<std::size_t>(&ranks - schedule.script.steps.data())];
  auto& submissions = step[dice.below(step.size())];
  for (Submission& submission : submissions) {
    if (submission.tensor == which) submission.tensor = variant;
  }
}

/// Some ranks join instead of a step of theirs and submit nothing until all others join, in a step that is put in for
/// it.
void draw_joins(Dice& dice, Schedule& schedule) {
  if (schedule.size < 2) return;
  const auto n = static_cast<std::size_t>(schedule.size);
  auto& steps = schedule.script.steps;
  const auto join = static_cast<std::uint32_t>(schedule.script.tensors.size());
  VirtualTensor tensor;
  tensor.name = "join";
  tensor.signature.kind = OpKind::join;
  schedule.script.tensors.push_back(tensor);
  schedule.in_place.push_back(true);
  schedule.nonfinite_step.push_back(-1);

  const std::size_t end = 1 + dice.below(steps.size());
  const auto spread = 1 + dice.below(30) * static_cast<std::uint64_t>(kMillisecond);
  const auto when = [&] { return static_cast<Nanoseconds>(dice.below(spread)); };
  steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(end), std::vector<std::vector<Submission>>(n));
  schedule.joined.assign(steps.size(), std::vector<bool>(n, false));
  for (std::int64_t& step : schedule.nonfinite_step) step += step >= static_cast<std::int64_t>(end) ? 1 : 0;
  const auto last = dice.below(n);  // at least one is not early
  for (std::size_t r = 0; r < n; ++r) {
    const std::size_t first = r != last && dice.chance(50) ? dice.below(end) : end;
    for (std::size_t s = first; s < end; ++s) {
      steps[s][r].clear();
      schedule.joined[s][r] = true;
    }
    steps[first][r].push_back({join, when(), 0});
  }
}

void draw_faults(Dice& dice, Schedule& schedule) {
  const auto n = static_cast<std::uint64_t>(schedule.size);
  if (n < 2) return;
  for (std::uint64_t i = 0; i < 1 + dice.below(2); ++i) {
    Fault fault;
    // A time on a logarithmic scale, from 1 us to 4 s.
    fault.at = static_cast<Nanoseconds>(1'000ULL << dice.below(23));
    fault.at += static_cast<Nanoseconds>(dice.below(static_cast<std::uint64_t>(fault.at)));
    fault.rank = static_cast<int>(dice.below(n));
    fault.peer = static_cast<int>((static_cast<std::uint64_t>(fault.rank) + 1 + dice.below(n - 1)) % n);
    fault.noticed = dice.one_of(std::vector<double>{1.0, 0.4, 0.0});
    const bool passes = dice.chance(30);
    const Nanoseconds pause = static_cast<Nanoseconds>(1 + dice.below(3000)) * kMillisecond;
    switch (dice.below(4)) {
      case 0:
        fault.kind = Fault::Kind::kill;
        break;
      case 1:
        fault.kind = Fault::Kind::stop;
        break;
      case 2:
        fault.kind = Fault::Kind::cut;
        break;
      default:
        fault.kind = Fault::Kind::abort;
        break;
    }
    const bool pauses = passes && (fault.kind == Fault::Kind::stop || fault.kind == Fault::Kind::cut);
    schedule.script.faults.push_back(fault);
    if (pauses) {
      fault.kind = fault.kind == Fault::Kind::stop ? Fault::Kind::resume : Fault::Kind::mend;
      fault.at += pause;
      schedule.script.faults.push_back(fault);
      continue;
    }
    schedule.breaks = true;
    schedule.culprits.push_back(fault.rank);
    if (fault.kind == Fault::Kind::cut) schedule.culprits.push_back(fault.peer);
  }
  schedule.options.ticks = true;
}

/// Several threads of a program wait, and another one keeps its lock, the GIL, now and then.
void draw_threads(Dice& dice, const Distributions& from, Schedule& schedule) {
  schedule.options.waiters = dice.one_of(from.waiters);
  if (!dice.chance(from.holds)) return;
  for (std::uint64_t i = 0; i < 1 + dice.below(3); ++i) {
    Fault fault{.kind = Fault::Kind::hold};
    fault.at = static_cast<Nanoseconds>(dice.below(100)) * kMillisecond / 10;
    fault.rank = static_cast<Rank>(dice.below(static_cast<std::uint64_t>(schedule.size)));
    fault.time = static_cast<Nanoseconds>(1 + dice.below(1000)) * kMillisecond;
    schedule.script.faults.push_back(fault);
  }
}

/// By some tensors' plans, by the others' programs.
void draw_priorities(Dice& dice, Schedule& schedule) {
  for (VirtualTensor& tensor : schedule.script.tensors) {
    const auto priority = static_cast<std::int32_t>(dice.below(5)) - 2;
    if (dice.chance(50)) {
      tensor.signature.priority = priority;
    } else {
      tensor.plan.priority = priority;
    }
  }
}

}  // namespace

std::uint64_t Dice::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

bool scatters(const std::string& codec) {
  const auto made = make_codec(codec);
  const CodecInfo& info = made->info();
  const bool at_once = info.rounds.size() == 1 && !gathers(info);
  return at_once && !info.whole && !merges_payloads(info) && made->agreed() == 0 && made->state({100, 1}).empty();
}

Schedule draw(std::uint64_t seed, const Distributions& from) {
  Dice dice(seed * 0x2545f4914f6cdd1dULL + 1);
  Schedule schedule;
  schedule.seed = seed;
  schedule.size = dice.one_of(from.members);
  draw_hosts(dice, schedule);
  draw_options(dice, from, schedule);
  const auto wanted = 1 + dice.below(static_cast<std::uint64_t>(from.tensors_most));
  const std::int64_t budget = from.work_most / schedule.size / from.steps_most;
  const bool small = dice.chance(from.small);
  std::int64_t elements = 0;
  for (std::uint64_t t = 0; t < wanted; ++t) {
    const std::string name = detail::concat("gradient", t);
    VirtualTensor tensor = small ? tiny_tensor(dice, from, name) : tensor_of(dice, from, schedule.size, name);
    const bool gathers = tensor.signature.kind == OpKind::allgather || tensor.signature.kind == OpKind::alltoall;
    const std::int64_t numel = tensor.signature.shape.numel() * (gathers ? schedule.size : 1);
    if (elements + numel > budget && t > 0) continue;
    elements += numel;
    if (!small && dice.chance(from.re_planned)) draw_next_plan(dice, schedule.size, tensor);
    schedule.script.tensors.push_back(std::move(tensor));
    schedule.in_place.push_back(dice.chance(from.in_place));
    schedule.nonfinite_step.push_back(dice.chance(from.nonfinite) ? static_cast<std::int64_t>(dice.below(2)) : -1);
  }
  draw_steps(dice, from, schedule);
  Dice others(seed * 0x9e3779b97f4a7c15ULL + 5);  // of its own: the other draws of a seed stay
  if (others.chance(from.evicting)) draw_evictions(others, from, schedule);
  if (dice.chance(from.disagree)) {
    draw_disagreement(dice, schedule);
  } else if (dice.chance(from.join)) {
    draw_joins(dice, schedule);
  }
  if (dice.chance(from.leave)) {
    for (int r = 0; r < schedule.size; ++r) {
      schedule.script.leave_after.push_back(static_cast<Nanoseconds>(dice.below(3)) * 10 * kMillisecond);
    }
  }
  if (dice.chance(from.faults)) draw_faults(dice, schedule);
  if (dice.chance(from.device)) {
    const bool has_lane = dice.chance(from.lane);
    for (int r = 0; r < schedule.size; ++r) schedule.script.on_stream.push_back(has_lane || dice.chance(80));
    if (has_lane) schedule.script.by_lane = 0.9;
  }
  if (dice.chance(from.prioritised)) draw_priorities(dice, schedule);
  if (schedule.options.threads) draw_threads(dice, from, schedule);
  return schedule;
}

std::string Distributions::print() const {
  std::ostringstream out;
  out << "members" << list_of(members) << "\ntensors 1.." << tensors_most << ", steps 1.." << steps_most << "\nnumel"
      << list_of(numel) << "\ncols" << list_of(cols) << "\ncodecs" << list_of(codecs) << " (under " << min_numel
      << " elements mostly none)\ndtypes, compressed:";
  for (const DType dtype : compressed) out << ' ' << name_of(dtype);
  out << "\ndtypes, uncompressed:";
  for (const DType dtype : uncompressed) out << ' ' << name_of(dtype);
  out << "\npartitions 1 3 N 2N, first owner any; topologies direct ps ring two_level auto, hosts alone or of unequal "
         "size"
      << "\npool bytes" << list_of(pool_bytes) << "\ninline bytes" << list_of(inline_bytes) << "\neager bytes"
      << list_of(eager_bytes) << "\nready interval ns" << list_of(ready_interval) << "\nat once bytes"
      << list_of(at_once_bytes) << "\nbatch bytes" << list_of(batch_bytes) << "\nlink bytes/s"
      << list_of(bytes_per_second) << ", latency ns" << list_of(latency) << ", jitter ns" << list_of(jitter)
      << "\nnotice ns" << list_of(notice) << "\nspread ns" << list_of(spread) << ", one rank late ns" << list_of(late)
      << "\nper cent: all tiny " << small << ", other kinds " << other_kind << ", scattered " << scattered
      << ", Adasum " << adasum << ", odd ops " << odd_op << ", in place " << in_place << ", scaled " << scaled
      << ", NaN or Inf " << nonfinite << ", another plan " << re_planned << ", same order " << same_order
      << ", global coordinator " << global_policy << ", disagreement " << disagree << ", join " << join
      << ", shutdown at the end " << leave << ", faults " << faults << ", threads " << threads
      << ", of them with holds of the program's lock " << holds << ", ticks " << ticks << ", on a device " << device
      << ", of these with a lane " << lane << ", priorities " << prioritised << ", few operations kept " << evicting
      << ", of these several shapes " << shapes << "\nkept" << list_of(kept) << '\n';
  return out.str();
}

std::string Schedule::print() const {
  std::ostringstream out;
  out << "seed " << seed << ": " << size << " ranks, hosts" << list_of(options.network.host_of) << ", pool "
      << options.engine.pool_bytes << ", inline " << options.engine.inline_bytes << ", eager "
      << options.engine.eager_bytes << ", keeps " << options.engine.kept.first << " to " << options.engine.kept.most
      << " operations" << (script.forgets > 0 ? ", forgets" : "") << ", ready interval "
      << *options.engine.ready_interval << " ns, at once " << options.engine.at_once_bytes << ", steps "
      << script.steps.size() << ", " << options.coordinator.policy << " coordinator"
      << (options.threads ? detail::concat(", ", options.waiters, " threads that wait")
          : options.ticks ? ", ticks"
                          : "");
  for (std::size_t r = 0; r < script.on_stream.size(); ++r) {
    if (script.on_stream[r]) out << ", rank " << r << " on a device";
  }
  if (script.by_lane > 0) out << " with a lane";
  for (std::size_t t = 0; t < script.tensors.size(); ++t) {
    const VirtualTensor& tensor = script.tensors[t];
    out << "\n  " << tensor.name << ": " << name_of(tensor.signature.kind) << ' ' << name_of(tensor.signature.dtype)
        << ' ' << tensor.signature.shape.rows << " x " << tensor.signature.shape.cols << ' '
        << name_of(tensor.signature.op) << ", " << tensor.plan.codec << ", " << tensor.plan.topology << ", K "
        << tensor.plan.partitions << ", first owner " << tensor.plan.first_owner << (in_place[t] ? ", in place" : "");
    if (tensor.then) {
      out << "; from step " << tensor.plan.until << " on " << tensor.then->codec << ", " << tensor.then->topology
          << ", K " << tensor.then->partitions << ", first owner " << tensor.then->first_owner;
    }
    if (nonfinite_step[t] >= 0) out << ", not finite in step " << nonfinite_step[t];
  }
  for (std::size_t s = 0; s < joined.size(); ++s) {
    out << "\n  joined in step " << s << ':';
    for (std::size_t r = 0; r < joined[s].size(); ++r) {
      if (joined[s][r]) out << ' ' << r;
    }
  }
  constexpr const char* kKinds[] = {"kill", "stop", "resume", "cut", "mend", "abort", "hold the program's lock on"};
  for (const Fault& fault : script.faults) {
    out << "\n  fault: " << kKinds[static_cast<std::size_t>(fault.kind)] << " rank " << fault.rank << " (peer "
        << fault.peer << ") at " << static_cast<double>(fault.at) * 1e-9 << " s";
  }
  return out.str();
}

}  // namespace casync::test
