#include "planner/cost/measurements.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "common/wire.hpp"

namespace casync {
namespace {

using Field = double CodecCost::*;
constexpr std::array<Field, 4> kFields{&CodecCost::encode_fixed_s, &CodecCost::encode_s_per_byte,
                                       &CodecCost::decode_fixed_s, &CodecCost::decode_s_per_byte};

void put_optional(ByteWriter& writer, const std::optional<double>& cost) { writer.put(cost.value_or(-1)); }

void put_link(ByteWriter& writer, const MeasuredLink& link) {
  for (const auto& cost : {link.latency_s, link.seconds_per_byte, link.message_s, link.processor_s_per_byte})
    put_optional(writer, cost);
}

double get_cost(ByteReader& reader, double least) {
  const auto cost = reader.get<double>();
  if (!std::isfinite(cost) || cost < least) throw CorruptPayload("a message of costs holds a number that is no cost");
  return cost;
}

std::optional<double> get_optional(ByteReader& reader) {
  const double cost = get_cost(reader, -1);
  return cost < 0 ? std::nullopt : std::optional(cost);
}

MeasuredLink get_link(ByteReader& reader) {
  MeasuredLink link;
  for (auto* const cost : {&link.latency_s, &link.seconds_per_byte, &link.message_s, &link.processor_s_per_byte})
    *cost = get_optional(reader);
  return link;
}

using CodecCosts = std::map<std::string, CodecCost, std::less<>>;

void put_codecs(ByteWriter& writer, const CodecCosts& codecs) {
  writer.put(static_cast<std::uint32_t>(codecs.size()));
  for (const auto& [codec, cost] : codecs) {
    writer.put_text(codec);
    for (const Field field : kFields) writer.put(cost.*field);
  }
}

CodecCosts get_codecs(ByteReader& reader) {
  CodecCosts costs;
  const auto codecs = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < codecs; ++i) {
    CodecCost& cost = costs[reader.get_text()];
    for (const Field field : kFields) cost.*field = get_cost(reader, 0);
  }
  return costs;
}

Processors get_processors(ByteReader& reader) {
  Processors processors;
  processors.machine = reader.get<std::uint64_t>();
  processors.usable = reader.get<std::uint32_t>();
  if (processors.usable == 0) throw CorruptPayload("a message of costs is of a rank that has no processor");
  return processors;
}

using Gradients = std::map<std::string, MeasuredGradient, std::less<>>;

std::vector<std::byte> bytes_of(const std::string& tensor, const MeasuredGradient& gradient) {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.put_text(tensor);
  writer.put(gradient.bytes);
  writer.put(static_cast<std::uint32_t>(gradient.payload_share.size()));
  for (const auto& [codec, share] : gradient.payload_share) {
    writer.put_text(codec);
    writer.put(share);
  }
  put_optional(writer, gradient.ready_s);
  put_optional(writer, gradient.worked_s);
  return out;
}

void put_gradients(std::vector<std::byte>& out, const Gradients& gradients) {
  std::vector<Gradients::const_pointer> largest_first;
  for (const auto& gradient : gradients) largest_first.push_back(&gradient);
  std::ranges::stable_sort(largest_first, std::greater(), [](const auto* one) { return one->second.bytes; });
  std::vector<std::byte> told;
  std::uint32_t count = 0;
  for (const auto* const gradient : largest_first) {
    const std::vector<std::byte> bytes = bytes_of(gradient->first, gradient->second);
    if (told.size() + bytes.size() > kMostBytesOfGradients) break;
    told.insert(told.end(), bytes.begin(), bytes.end());
    ++count;
  }
  ByteWriter(out).put(count);
  out.insert(out.end(), told.begin(), told.end());
}

Gradients get_gradients(ByteReader& reader) {
  Gradients gradients;
  const auto count = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) {
    MeasuredGradient& gradient = gradients[reader.get_text()];
    gradient.bytes = get_cost(reader, 0);
    const auto codecs = reader.get<std::uint32_t>();
    for (std::uint32_t c = 0; c < codecs; ++c) {
      double& share = gradient.payload_share[reader.get_text()];
      share = get_cost(reader, 0);
    }
    gradient.ready_s = get_optional(reader);
    gradient.worked_s = get_optional(reader);
  }
  return gradients;
}

/// Of payloads the mean of those who have told; of readiness the last rank's, for which all wait.
Gradients reduced_gradients(std::span<const MeasuredCosts> ranks) {
  Gradients reduced;
  std::map<std::pair<std::string, std::string>, std::vector<double>> shares;
  for (const MeasuredCosts& rank : ranks) {
    for (const auto& [tensor, gradient] : rank.gradients) {
      reduced[tensor].bytes = gradient.bytes;
      reduced[tensor].ready_s = std::max(reduced[tensor].ready_s, gradient.ready_s);
      reduced[tensor].worked_s = std::max(reduced[tensor].worked_s, gradient.worked_s);
      for (const auto& [codec, share] : gradient.payload_share) shares[{tensor, codec}].push_back(share);
    }
  }
  for (const auto& [of, told] : shares) {
    reduced[of.first].payload_share[of.second] = mean(told);
  }
  return reduced;
}

Processors scarcest(std::span<const MeasuredCosts> ranks) {
  std::map<std::uint64_t, Processors> shared;
  std::vector<Processors> all;
  for (const MeasuredCosts& rank : ranks) {
    if (rank.processors.machine == 0) {
      all.push_back(rank.processors);
      continue;
    }
    const auto [at, is_first] = shared.try_emplace(rank.processors.machine, rank.processors);
    if (is_first) continue;
    at->second.usable = std::min(at->second.usable, rank.processors.usable);
    ++at->second.ranks;
  }
  for (const auto& [machine, processors] : shared) all.push_back(processors);
  return std::ranges::min(all, {}, &Processors::of_one_rank);
}

bool same(const CodecCosts& a, const CodecCosts& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::all_of(kFields, [&](Field f) { return x.second.*f == y.second.*f; });
  });
}

/// For how much of the backward pass, until its last gradient, the thread is on a processor.
double backward_work(const Gradients& gradients) {
  double ready_s = 0, worked_s = 0;
  for (const auto& [tensor, gradient] : gradients) {
    if (gradient.ready_s.value_or(0) <= ready_s) continue;
    ready_s = *gradient.ready_s;
    worked_s = gradient.worked_s.value_or(ready_s);
  }
  return ready_s > 0 ? std::min(1.0, worked_s / ready_s) : 1;
}

/// Of each codec that at least `least` ranks have, the median.
CodecCosts medians(std::span<const MeasuredCosts> ranks, CodecCosts MeasuredCosts::* of, std::size_t least) {
  std::map<std::string, std::vector<CodecCost>> told;
  for (const MeasuredCosts& rank : ranks) {
    for (const auto& [codec, cost] : rank.*of) told[codec].push_back(cost);
  }
  CodecCosts reduced;
  for (const auto& [codec, costs] : told) {
    if (costs.size() < least) continue;
    for (const Field field : kFields) {
      std::vector<double> values;
      for (const CodecCost& cost : costs) values.push_back(cost.*field);
      reduced[codec].*field = median(values);
    }
  }
  return reduced;
}

}  // namespace

bool operator==(const MeasuredCosts& a, const MeasuredCosts& b) {
  return a.inter == b.inter && a.intra == b.intra && a.copy == b.copy && a.operation == b.operation &&
         same(a.codecs, b.codecs) && same(a.device_codecs, b.device_codecs) && a.gradients == b.gradients &&
         a.processors == b.processors;
}

void put(std::vector<std::byte>& out, const MeasuredCosts& costs) {
  ByteWriter writer(out);
  put_link(writer, costs.inter);
  put_link(writer, costs.intra);
  put_optional(writer, costs.copy);
  put_optional(writer, costs.operation);
  put_codecs(writer, costs.codecs);
  put_codecs(writer, costs.device_codecs);
  writer.put(costs.processors.machine);
  writer.put(costs.processors.usable);
  put_gradients(out, costs.gradients);
}

MeasuredCosts get_measured_costs(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  MeasuredCosts costs;
  costs.inter = get_link(reader);
  costs.intra = get_link(reader);
  costs.copy = get_optional(reader);
  costs.operation = get_optional(reader);
  costs.codecs = get_codecs(reader);
  costs.device_codecs = get_codecs(reader);
  costs.processors = get_processors(reader);
  costs.gradients = get_gradients(reader);
  return costs;
}

MeasuredCosts reduce(std::span<const MeasuredCosts> ranks) {
  MeasuredCosts reduced;
  std::vector<MeasuredLink> inter, intra;
  std::vector<double> operations;
  for (const MeasuredCosts& rank : ranks) {
    if (rank.operation) operations.push_back(*rank.operation);
    inter.push_back(rank.inter);
    intra.push_back(rank.intra);
    reduced.copy = std::max(reduced.copy, rank.copy);  // nothing is less than any number
  }
  if (!operations.empty()) reduced.operation = median(operations);
  reduced.processors = scarcest(ranks);
  const bool hindered = reduced.processors.of_one_rank() < 1;
  reduced.inter = reduce(inter, hindered);
  reduced.intra = reduce(intra, hindered);
  reduced.codecs = medians(ranks, &MeasuredCosts::codecs, 1);
  reduced.device_codecs = medians(ranks, &MeasuredCosts::device_codecs, ranks.size());
  reduced.gradients = reduced_gradients(ranks);
  return reduced;
}

CostTable measured_over(const MeasuredCosts& measured, const CostTable& prior) {
  CostTable table = prior;
  table.inter = measured_over(measured.inter, prior.inter);
  table.intra = measured_over(measured.intra, prior.intra);
  table.copy_s_per_byte = measured.copy.value_or(prior.copy_s_per_byte);
  for (const auto& [codec, cost] : measured.codecs) table.codecs[codec] = cost;
  for (const auto& [codec, cost] : measured.device_codecs) table.device_codecs[codec] = cost;
  table.gradients = measured.gradients;
  table.operation_s = measured.operation.value_or(prior.operation_s);
  table.backward_work = backward_work(measured.gradients);
  table.processors = measured.processors.of_one_rank();
  return table;
}

void Measurements::add(const Measurement& measurement) {
  const Sample sample{measurement.bytes, measurement.seconds};
  const auto call = [&](CodecTimes& times, CodecTimes::Call of) {
    times.add(measurement.codec, of, sample, measurement.basis);
  };
  switch (measurement.kind) {
    case CostKind::encode:
      call(codecs_, CodecTimes::Call::encode);
      break;
    case CostKind::decode:
      call(codecs_, CodecTimes::Call::decode);
      break;
    case CostKind::inter:
      inter_.add_body(sample);
      break;
    case CostKind::intra:
      intra_.add_body(sample);
      break;
    case CostKind::device_encode:
      call(device_codecs_, CodecTimes::Call::encode);
      break;
    case CostKind::device_decode:
      call(device_codecs_, CodecTimes::Call::decode);
      break;
    case CostKind::inter_processor:
      inter_.add_processor(sample);
      break;
    case CostKind::operation:
      operations_.add(sample);
      break;
    case CostKind::copy:
      copies_.add(sample);
      break;
    case CostKind::inter_round_trip:
      inter_.add_round_trip(sample.seconds);
      break;
    case CostKind::intra_round_trip:
      intra_.add_round_trip(sample.seconds);
      break;
    case CostKind::inter_message:
      inter_.add_message(sample);
      break;
    case CostKind::intra_message:
      intra_.add_message(sample);
      break;
  }
}

/// What a step's operations took on average, without what their bodies' messages cost a sender and a receiver. The
/// least of all steps: in the others something began, or was planned.
std::optional<double> Measurements::operation(double message_s) const {
  std::vector<double> seconds;
  for (const Sample& step : operations_.values())
    seconds.push_back(std::max(0.0, step.seconds - 2 * step.bytes * message_s));
  return seconds.empty() ? std::nullopt : std::optional(std::ranges::min(seconds));
}

MeasuredCosts Measurements::costs() const {
  MeasuredCosts costs;
  costs.inter = inter_.link();
  costs.intra = intra_.link();
  costs.copy = rate_of_largest(copies_.values());
  costs.operation = operation(measured_over(costs.inter, CostTable().inter).message_s);
  costs.codecs = codecs_.costs();
  costs.device_codecs = device_codecs_.costs();
  payloads_.tell(costs.gradients);
  readiness_.tell(costs.gradients);
  return costs;
}

}  // namespace casync
