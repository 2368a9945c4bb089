#include "executor/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "casync/error.hpp"
#include "codec/reference.hpp"
#include "common/hash.hpp"

namespace casync::test {
namespace {

/// Adds as `none` documents: float32 and 16-bit floats in float32, float64 in float64, integers exactly, bool as or and
/// and.
double combine(double a, double b, ReduceOp op, DType dtype) {
  if (std::isnan(b) && (op == ReduceOp::min || op == ReduceOp::max)) return b;  // passed on, whichever side it is on
  switch (op) {
    case ReduceOp::min:
      return b < a ? b : a;
    case ReduceOp::max:
      return b > a ? b : a;
    case ReduceOp::product:
      return a * b;
    case ReduceOp::average:
    case ReduceOp::sum:
    case ReduceOp::adasum:  // has its own way
      break;
  }
  if (dtype == DType::boolean) return a != 0 || b != 0 ? 1 : 0;
  if (dtype == DType::float64 || !is_floating(dtype)) return a + b;
  return static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
}

/// The mean, of the complete sum.
double finish(double sum, const Signature& signature, std::size_t members) {
  const bool average = signature.op == ReduceOp::average;
  if (signature.dtype == DType::boolean) return sum;
  if (!is_floating(signature.dtype)) return average ? std::trunc(sum / static_cast<double>(members)) : sum;
  if (signature.dtype == DType::float64) return average ? sum / static_cast<double>(members) : sum;
  if (signature.op == ReduceOp::min || signature.op == ReduceOp::max || signature.op == ReduceOp::product) return sum;
  return static_cast<double>(static_cast<float>(sum) / static_cast<float>(average ? members : 1));
}

/// A value as it is after a hop: rounded to the dtype.
double stored(double value, DType dtype) {
  Blob place(8);
  reference::write(place.data(), 0, dtype, value);
  return reference::read(place.data(), 0, dtype);
}

}  // namespace

TensorReference::TensorReference(const VirtualTensor& tensor, std::vector<std::uint32_t> host_of)
    : tensor_(tensor), host_of_(std::move(host_of)), name_hash_(hash_text(tensor.name)) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> hosts;
  for (std::uint32_t m = 0; m < host_of_.size(); ++m) hosts[host_of_[m]].push_back(m);
  for (auto& [host, ranks] : hosts) hosts_.push_back(ranks);
  use(tensor.plan);
}

/// What a codec keeps goes on under another plan with the same codec, and begins with a new one.
void TensorReference::use(const GradientPlan& plan) {
  const bool same_codec = codec_ != nullptr && plan.codec == tensor_.plan.codec;
  tensor_.plan = plan;
  const Signature& signature = tensor_.signature;
  if (!same_codec) codec_ = make_codec(plan.codec);
  compressed_ = reduces(signature.kind) && !codec_->info().identity;
  if (compressed_ && host_of_.size() > 1) feedback_ = codec_->info().feedback;
  if (reduces(signature.kind)) {
    WorkflowRequest request;
    request.kind = signature.kind;
    request.shape = signature.shape;
    request.dtype = signature.dtype;
    request.codec = codec_.get();
    request.op = signature.op;
    request.route = make_route(plan.topology).get();
    request.partitions = plan.partitions;
    request.first_owner = plan.first_owner;
    request.host_of = host_of_;
    partitions_ = build_workflow(request).partitions;
  }
  if (same_codec) return;
  states_.assign(host_of_.size(), compressed_ && host_of_.size() > 1 ? started() : State{});
  residuals_.assign(host_of_.size(), std::vector<float>(static_cast<std::size_t>(signature.shape.numel()), 0.0F));
}

TensorReference::State TensorReference::started() const {
  State state;
  for (const StateArray& array : codec_->state(tensor_.signature.shape)) {
    state.emplace_back(static_cast<std::size_t>(array.elements), 0.0F);
    codec_->start(tensor_.signature.shape, name_hash_, state.size() - 1, state.back());
  }
  return state;
}

Source TensorReference::raw(const Blob& input, const Range& range) const {
  const std::size_t element = size_of(tensor_.signature.dtype);
  return {input.data() + static_cast<std::size_t>(range.begin) * element,
          static_cast<std::size_t>(range.size()) * element, true};
}

/// Whether a partition's payload is a piece, at a known place, of that of the whole gradient.
bool TensorReference::is_cut() const { return codec_->info().fixed_size || partitions_.size() == 1; }

/// Payloads of whole units stand one after the other, so that of a partition is a piece of the whole gradient's.
Source TensorReference::slice(const Blob& payload, const Range& range, int round) const {
  const Shape& shape = tensor_.signature.shape;
  const DType dtype = tensor_.signature.dtype;
  if (!codec_->info().fixed_size) {
    CASYNC_CHECK(range.begin == 0 && range.end == shape.numel(), "payloads of variable size are not cut");
    return {payload.data(), payload.size(), false};
  }
  const std::size_t before = codec_->bound(shape, dtype, {0, range.begin}, round);
  return {payload.data() + before, codec_->bound(shape, dtype, range, round), false};
}

/// Runs the codec on one part; returns the payload and writes the raw result to `out` if there is one.
Blob TensorReference::compute(const Part& part, void* out) {
  const Signature& signature = tensor_.signature;
  const CodecInfo& info = codec_->info();
  const bool adasum = signature.op == ReduceOp::adasum;
  const auto n = adasum ? 1.0F : static_cast<float>(host_of_.size());
  const bool average = signature.op == ReduceOp::average;
  const Shape& shape = part.gradient.numel() > 0 ? part.gradient : signature.shape;
  Blob payload(part.encodes ? codec_->bound(shape, signature.dtype, part.range, part.round) : 0);
  Segment segment;
  segment.shape = shape;
  segment.dtype = signature.dtype;
  segment.range = part.range;
  segment.name_hash = name_hash_ + static_cast<std::uint64_t>(part.begin) * 0x9e3779b97f4a7c15ULL;
  segment.sequence = sequence_;
  segment.rank = static_cast<std::uint16_t>(part.rank);
  segment.role = part.role;
  segment.round = static_cast<std::uint8_t>(part.round);
  segment.sources = part.sources;
  if (adasum && part.final) segment.op = ReduceOp::adasum;
  segment.world = contributions();
  if (info.prescaled) {
    segment.pre = 1.0F / n;
  } else if (part.final && !merges_payloads(info)) {
    segment.mid = 1.0F / n;
  }
  if (part.deliver) segment.post = average ? 1.0F : n;
  if (part.deliver && merges_payloads(info)) segment.post *= static_cast<float>(contributions()) / n;
  segment.previous = part.previous;
  if (part.feedback && keeps_residuals())
    segment.residual = residuals_[part.rank].data() + part.begin + part.range.begin;
  std::vector<float*> state;
  for (auto& array : states_[part.rank]) state.push_back(array.data());
  segment.state = state;
  segment.payload = payload;
  segment.raw_out = out;
  codec_->run(std::span(&segment, 1));
  payload.resize(segment.payload_bytes);
  return payload;
}

const std::vector<float>& TensorReference::held_back(int rank) const {
  const auto arrays = codec_->state(tensor_.signature.shape);
  for (std::size_t i = 0; feedback_ == Feedback::own && i < arrays.size(); ++i) {
    if (arrays[i].pending) return state(rank)[i];
  }
  return residual(rank);
}

/// Every rank proposes; all take the mean, unless it is not finite.
void TensorReference::settle(const std::vector<Blob>& inputs) {
  std::vector<float> mean(static_cast<std::size_t>(codec_->agreed()));
  Segment segment;
  segment.shape = tensor_.signature.shape;
  segment.dtype = tensor_.signature.dtype;
  segment.range = {0, segment.shape.numel()};
  for (const Blob& input : inputs) {
    const Source source = raw(input, segment.range);
    segment.sources = {&source, 1};
    std::vector<float> values(mean.size());
    codec_->propose(segment, values);
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i];
  }
  bool finite = true;
  for (float& value : mean) {
    value /= static_cast<float>(inputs.size());
    finite &= std::isfinite(value);
  }
  for (std::size_t m = 0; finite && m < inputs.size(); ++m) {
    std::vector<float*> state;
    for (auto& array : states_[m]) state.push_back(array.data());
    segment.state = state;
    codec_->agree(segment, mean);
  }
  settled_ = finite;
}

Blob TensorReference::step(const std::vector<Blob>& inputs, std::uint32_t sequence, const std::vector<bool>& joined) {
  sequence_ = sequence;
  if (tensor_.then && is_over(tensor_.plan, sequence)) use(*tensor_.then);
  const std::vector<std::vector<float>> residuals = residuals_;
  const std::vector<State> states = states_;
  const auto arrays = compressed_ ? codec_->state(tensor_.signature.shape) : std::vector<StateArray>{};
  const auto each_own = [&](const auto& change) {
    for (std::size_t m = 0; m < joined.size(); ++m) {
      for (std::size_t a = 0; joined[m] && a < states_[m].size(); ++a) {
        if (!arrays[a].shared) change(m, a);
      }
    }
  };
  each_own([&](std::size_t m, std::size_t a) { states_[m][a] = started()[a]; });
  for (std::size_t m = 0; m < joined.size(); ++m) {
    if (joined[m]) std::fill(residuals_[m].begin(), residuals_[m].end(), 0.0F);
  }
  Blob out = reduce(inputs);
  each_own([&](std::size_t m, std::size_t a) { states_[m][a] = states[m][a]; });
  for (std::size_t m = 0; m < joined.size(); ++m) {
    if (joined[m]) residuals_[m] = residuals[m];
  }
  return out;
}

Blob TensorReference::reduce(const std::vector<Blob>& inputs) {
  Blob out;
  switch (tensor_.signature.kind) {
    case OpKind::barrier:
    case OpKind::join:
      break;
    case OpKind::broadcast:
      out = inputs[static_cast<std::size_t>(tensor_.signature.root)];
      break;
    case OpKind::allgather:
      for (const Blob& input : inputs) out.insert(out.end(), input.begin(), input.end());
      break;
    case OpKind::alltoall:  // every rank ends with another result: check.cc
      break;
    case OpKind::reducescatter:
      out = !compressed_ ? allreduce_plain(inputs) : inputs.size() == 1 ? inputs[0] : scatter(inputs);
      break;
    case OpKind::allreduce:
      if (compressed_ && inputs.size() > 1 && !settled_ && codec_->agreed() > 0 && tensor_.signature.shape.numel() > 0)
        settle(inputs);
      if (!compressed_ && tensor_.signature.op == ReduceOp::adasum) {
        out = adasum(inputs);
      } else if (!compressed_) {
        out = allreduce_plain(inputs);
      } else if (inputs.size() == 1) {
        out = inputs[0];  // N = 1 is the identity
      } else if (merges_payloads(codec_->info()) || tensor_.plan.topology == "direct") {
        out = rounds(inputs);
      } else {
        out = parameter_server(inputs);
      }
      break;
  }
  return out;
}

/// direct, PS: member order, one rounding at the end. ring: owner+1, ..., owner, rounded at each hop. two_level: host
/// by host, own ranks one by one, other hosts' sums (in rank order) rounded once before.
Blob TensorReference::allreduce_plain(const std::vector<Blob>& inputs) const {
  const Signature& signature = tensor_.signature;
  const DType dtype = signature.dtype;
  const auto n = static_cast<std::uint32_t>(inputs.size());
  Blob out(inputs[0].size());
  const auto value = [&](std::uint32_t m, std::size_t i) { return reference::read(inputs[m].data(), i, dtype); };
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    const auto position = static_cast<std::uint32_t>(tensor_.plan.first_owner + p);
    for (auto e = partitions_[p].begin; e < partitions_[p].end; ++e) {
      const auto i = static_cast<std::size_t>(e);
      double sum = 0;
      bool first = true;
      const auto add = [&](double next) {
        sum = first ? next : combine(sum, next, signature.op, dtype);
        first = false;
      };
      if (tensor_.plan.topology == "ring" && n > 1) {
        for (std::uint32_t hop = 1; hop <= n; ++hop) {
          add(value((position + hop) % n, i));
          if (hop < n) sum = stored(sum, dtype);
        }
      } else if (tensor_.plan.topology == "two_level" && n > 1) {
        const std::size_t owner_host = position % hosts_.size();
        for (std::size_t h = 0; h < hosts_.size(); ++h) {
          if (h == owner_host) {
            for (const std::uint32_t m : hosts_[h]) add(value(m, i));
            continue;
          }
          double local = value(hosts_[h][0], i);
          for (std::size_t m = 1; m < hosts_[h].size(); ++m)
            local = combine(local, value(hosts_[h][m], i), signature.op, dtype);
          add(stored(local, dtype));
        }
      } else {
        for (std::uint32_t m = 0; m < n; ++m) add(value(m, i));
      }
      reference::write(out.data(), i, dtype, finish(sum, signature, n));
    }
  }
  return out;
}

/// Near the result: what is added up in another order may differ in the last bits of a double.
Blob TensorReference::adasum(const std::vector<Blob>& inputs) const {
  const Signature& signature = tensor_.signature;
  const auto numel = static_cast<std::size_t>(signature.shape.numel());
  std::vector<std::vector<double>> contributions;
  for (const Blob& input : inputs) {
    auto& values = contributions.emplace_back(numel);
    for (std::size_t i = 0; i < numel; ++i) values[i] = reference::read(input.data(), i, signature.dtype);
  }
  const std::vector<double> result = reference::adasum(contributions);
  Blob out(inputs[0].size());
  for (std::size_t i = 0; i < numel; ++i)
    reference::write(out.data(), i, signature.dtype, finish(result[i], signature, inputs.size()));
  return out;
}

/// The owner adds all contributions in member order, its own raw, takes the mean, encodes; all decode what it encoded.
void TensorReference::owned(const std::vector<Blob>& inputs, const std::vector<Blob>& payloads, const Range& range,
                            std::uint32_t owner, Blob& out) {
  Part part{range, owner, Role::owner};
  part.feedback = part.final = part.deliver = part.encodes = true;
  std::vector<Blob> encoded(inputs.size());
  for (std::uint32_t m = 0; m < inputs.size(); ++m) {
    if (m == owner) {
      part.sources.push_back(raw(inputs[m], range));
    } else if (is_cut()) {
      part.sources.push_back(slice(payloads[m], range, 0));
    } else {
      Part own{range, m};
      own.feedback = own.encodes = true;
      own.sources.push_back(raw(inputs[m], range));
      encoded[m] = compute(own, nullptr);
      part.sources.push_back({encoded[m].data(), encoded[m].size(), false});
    }
  }
  const std::size_t element = size_of(tensor_.signature.dtype);
  compute(part, out.data() + static_cast<std::size_t>(range.begin) * element);
}

/// Of a codec that gathers nobody takes the mean before all have decoded what came round.
void TensorReference::ring(const std::vector<Blob>& inputs, const Range& range, std::uint32_t owner, Blob& out) {
  const auto n = static_cast<std::uint32_t>(inputs.size());
  const std::size_t element = size_of(tensor_.signature.dtype);
  Blob carried;
  for (std::uint32_t hop = 0; hop < n; ++hop) {
    const std::uint32_t member = (owner + 1 + hop) % n;
    Part part{range, member, hop == 0 ? Role::worker : Role::owner};
    part.feedback = part.encodes = true;
    part.final = part.deliver = hop + 1 == n && !gathers();
    const Source sum{carried.data(), carried.size(), false};
    part.sources.assign(hop > 0 ? 1 : 0, sum);
    part.sources.push_back(raw(inputs[member], range));
    Blob next = compute(part, part.deliver ? out.data() + static_cast<std::size_t>(range.begin) * element : nullptr);
    carried = std::move(next);
  }
  if (!gathers()) return;
  Part decode{range};
  decode.final = decode.deliver = true;
  decode.sources.push_back({carried.data(), carried.size(), false});
  compute(decode, out.data() + static_cast<std::size_t>(range.begin) * element);
}

/// Who leads host `h` in a partition.
std::uint32_t TensorReference::leader(std::size_t h, std::uint32_t position) const {
  std::size_t largest = 0;
  for (const auto& members : hosts_) largest = std::max(largest, members.size());
  const std::size_t turn = position / hosts_.size() % largest;
  return hosts_[h][turn % hosts_[h].size()];
}

/// Each of them encodes a contribution of its own.
std::uint32_t TensorReference::contributions() const {
  const bool by_host = tensor_.plan.topology == "two_level" && host_of_.size() > 1;
  return static_cast<std::uint32_t>(by_host ? hosts_.size() : host_of_.size());
}

/// Those who encode in a partition, in the order in which their payloads are added.
std::vector<TensorReference::Encoder> TensorReference::encoders(std::uint32_t position) const {
  std::vector<Encoder> list;
  if (tensor_.plan.topology == "two_level") {
    for (std::size_t h = 0; h < hosts_.size(); ++h) list.push_back({leader(h, position), hosts_[h]});
  } else {
    for (std::uint32_t m = 0; m < host_of_.size(); ++m) list.push_back({m, {m}});
  }
  return list;
}

/// PS and two-level with a codec whose payloads are gathered: they are added, and never encoded again.
void TensorReference::gathered(const std::vector<Blob>& inputs, const Range& range, std::uint32_t position, Blob& out) {
  std::vector<Blob> payloads;
  Part merge{range};
  for (const Encoder& encoder : encoders(position)) {
    Part part{range, encoder.rank};
    merge.rank = encoder.rank;
    part.feedback = part.encodes = true;
    for (const std::uint32_t m : encoder.adds) part.sources.push_back(raw(inputs[m], range));
    payloads.push_back(compute(part, nullptr));
  }
  merge.final = merge.deliver = true;
  for (const Blob& payload : payloads) merge.sources.push_back({payload.data(), payload.size(), false});
  compute(merge, out.data() + static_cast<std::size_t>(range.begin) * size_of(tensor_.signature.dtype));
}

/// Every host's leader adds its ranks raw and encodes; the owner adds host by host, its own ranks raw.
void TensorReference::two_level(const std::vector<Blob>& inputs, const Range& range, std::uint32_t position,
                                Blob& out) {
  const std::size_t element = size_of(tensor_.signature.dtype);
  const std::size_t owner_host = position % hosts_.size();
  const auto leader = [&](std::size_t h) { return this->leader(h, position); };
  std::vector<Blob> sums(hosts_.size());
  Part last{range, leader(owner_host), Role::owner};
  last.feedback = last.final = last.deliver = last.encodes = true;
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    if (h == owner_host) {
      for (const std::uint32_t m : hosts_[h]) last.sources.push_back(raw(inputs[m], range));
      continue;
    }
    Part part{range, leader(h), Role::worker};
    part.feedback = part.encodes = true;
    for (const std::uint32_t m : hosts_[h]) part.sources.push_back(raw(inputs[m], range));
    sums[h] = compute(part, nullptr);
    last.sources.push_back({sums[h].data(), sums[h].size(), false});
  }
  compute(last, out.data() + static_cast<std::size_t>(range.begin) * element);
}

/// PS, ring and two-level with a codec of one round.
Blob TensorReference::parameter_server(const std::vector<Blob>& inputs) {
  Blob out(inputs[0].size());
  const auto n = static_cast<std::uint32_t>(inputs.size());
  const Range whole{0, tensor_.signature.shape.numel()};
  std::vector<Blob> payloads(n);
  if (tensor_.plan.topology == "ps" && !gathers() && whole.size() > 0 && is_cut()) {
    // What a worker sends of the partitions it does not own is cut from one encoding of the whole gradient.
    const auto before = residuals_;
    const auto states_before = states_;
    for (std::uint32_t m = 0; m < n; ++m) {
      Part part{whole, m};
      part.feedback = part.encodes = true;
      part.sources.push_back(raw(inputs[m], whole));
      payloads[m] = compute(part, nullptr);
    }
    for (std::size_t p = 0; p < partitions_.size(); ++p) {
      const std::uint32_t owner = static_cast<std::uint32_t>(tensor_.plan.first_owner + p) % n;
      std::copy(before[owner].begin() + partitions_[p].begin, before[owner].begin() + partitions_[p].end,
                residuals_[owner].begin() + partitions_[p].begin);
      const auto arrays = codec_->state(tensor_.signature.shape);
      for (std::size_t a = 0; a < states_[owner].size(); ++a) {
        if (!arrays[a].per_element) continue;
        std::copy(states_before[owner][a].begin() + partitions_[p].begin,
                  states_before[owner][a].begin() + partitions_[p].end,
                  states_[owner][a].begin() + partitions_[p].begin);
      }
    }
  }
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    const auto position = static_cast<std::uint32_t>(tensor_.plan.first_owner + p);
    const std::string& topology = tensor_.plan.topology;
    if (topology == "ring") {
      ring(inputs, partitions_[p], position % n, out);
    } else if (gathers()) {
      gathered(inputs, partitions_[p], position, out);
    } else if (topology == "ps") {
      owned(inputs, payloads, partitions_[p], position % n, out);
    } else {
      two_level(inputs, partitions_[p], position, out);
    }
  }
  return out;
}

Range TensorReference::rows_of(std::uint32_t rank) const {
  const Shape& shape = tensor_.signature.shape;
  const auto n = static_cast<std::int64_t>(host_of_.size());
  std::int64_t begin = 0;
  for (std::int64_t m = 0;; ++m) {
    const std::int64_t rows = shape.rows / n + (m < shape.rows % n ? 1 : 0);
    if (m == rank) return {begin * shape.cols, (begin + rows) * shape.cols};
    begin += rows;
  }
}

/// A rank's rows are a gradient of their own, which every other rank encodes. The owner adds in member order, its own
/// contribution raw, takes the mean and keeps it. The result holds the rows of all ranks.
Blob TensorReference::scatter(const std::vector<Blob>& inputs) {
  Blob out(inputs[0].size());
  const std::size_t element = size_of(tensor_.signature.dtype);
  for (std::uint32_t owner = 0; owner < inputs.size(); ++owner) {
    const Range rows = rows_of(owner);
    if (rows.size() == 0) continue;
    Part merge{{0, rows.size()}, owner, Role::owner};
    merge.begin = rows.begin;
    merge.gradient = {rows.size() / tensor_.signature.shape.cols, tensor_.signature.shape.cols};
    merge.final = merge.deliver = true;
    std::vector<Blob> payloads(inputs.size());
    for (std::uint32_t m = 0; m < inputs.size(); ++m) {
      merge.sources.push_back(raw(inputs[m], rows));
      if (m == owner) continue;
      Part part{merge.range, m};
      part.begin = merge.begin;
      part.gradient = merge.gradient;
      part.feedback = part.encodes = true;
      part.sources = {merge.sources.back()};
      payloads[m] = compute(part, nullptr);
      merge.sources.back() = {payloads[m].data(), payloads[m].size(), false};
    }
    compute(merge, out.data() + static_cast<std::size_t>(rows.begin) * element);
  }
  return out;
}

/// direct with a codec, and codecs whose payloads merge: every member encodes, payloads are merged in member order, and
/// the result of a round is what the next one starts from. In the last round direct decodes each payload, PS the merged
/// one. By two levels a host's leader encodes the sum over its ranks; a ring adds payloads up in parts.
Blob TensorReference::rounds(const std::vector<Blob>& inputs) {
  Blob out(inputs[0].size());
  const std::size_t element = size_of(tensor_.signature.dtype);
  if (tensor_.plan.topology == "direct" || tensor_.plan.topology == "ps") {
    rounds_of(inputs, {0, tensor_.signature.shape.numel()}, encoders(0), out.data());
    return out;
  }
  for (std::size_t p = 0; p < partitions_.size(); ++p) {
    const auto leaders = encoders(tensor_.plan.first_owner + static_cast<std::uint32_t>(p));
    rounds_of(inputs, partitions_[p], leaders, out.data() + static_cast<std::size_t>(partitions_[p].begin) * element);
  }
  return out;
}

/// The elements of all payloads merged in N parts. Part i is merged from rank i + 1 on, round to rank i, and rounded to
/// what elements are at each hop.
Blob TensorReference::added_in_parts(const std::vector<Blob>& payloads, const Round& round) const {
  const std::size_t n = payloads.size();
  Blob sum(payloads[0].size());
  const std::size_t elements = sum.size() / size_of(round.element);
  const auto merged = [&](double total, double value) {
    if (round.merge == Merge::saturating) return std::clamp(total + value, -127.0, 127.0);
    if (round.merge == Merge::max) return value > total || value != value ? value : total;  // NaN wins
    return static_cast<double>(static_cast<float>(total) + static_cast<float>(value));
  };
  for (std::size_t part = 0; part < n; ++part) {
    for (std::size_t i = elements * part / n; i < elements * (part + 1) / n; ++i) {
      for (std::size_t hop = 0; hop < n; ++hop) {
        double value = reference::read(payloads[(part + 1 + hop) % n].data(), i, round.element);
        if (hop > 0) value = merged(reference::read(sum.data(), i, round.element), value);
        if (round.merge == Merge::mean && hop == n - 1)
          value = static_cast<double>(static_cast<float>(value) / static_cast<float>(n));
        reference::write(sum.data(), i, round.element, value);
      }
    }
  }
  return sum;
}

void TensorReference::rounds_of(const std::vector<Blob>& inputs, const Range& whole,
                                const std::vector<Encoder>& encoders, std::byte* out) {
  if (whole.size() == 0) return;
  const auto count = static_cast<int>(codec_->info().rounds.size());
  Blob previous;
  for (int round = 0; round < count; ++round) {
    std::vector<Blob> payloads;
    for (const Encoder& encoder : encoders) {
      Part part{whole, encoder.rank};
      part.round = round;
      part.feedback = part.encodes = true;
      part.previous = previous;
      for (const std::uint32_t m : encoder.adds) part.sources.push_back(raw(inputs[m], whole));
      payloads.push_back(compute(part, nullptr));
    }
    Part merge{whole, 0, Role::owner};
    merge.round = round;
    merge.previous = previous;
    for (const Blob& payload : payloads) merge.sources.push_back({payload.data(), payload.size(), false});
    const bool last = round + 1 == count;
    if (last && tensor_.plan.topology == "direct") {
      merge.role = Role::worker;
      merge.final = merge.deliver = true;
      for (merge.rank = 0; merge.rank < inputs.size(); ++merge.rank) compute(merge, out);
      break;
    }
    merge.encodes = true;
    Blob merged = tensor_.plan.topology == "ring"
                      ? added_in_parts(payloads, codec_->info().rounds[static_cast<std::size_t>(round)])
                      : compute(merge, nullptr);
    if (last) {
      Part decode{whole, 0};
      decode.round = round;
      decode.previous = previous;
      decode.final = decode.deliver = true;
      decode.sources.push_back({merged.data(), merged.size(), false});
      for (decode.rank = 0; decode.rank < inputs.size(); ++decode.rank) compute(decode, out);
      break;
    }
    previous = std::move(merged);
  }
}

}  // namespace casync::test
