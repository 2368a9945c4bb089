#include "planner/measurements.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/wire.hpp"

namespace casync {
namespace {

using Field = double CodecCost::*;
constexpr std::array<Field, 4> kFields{&CodecCost::encode_fixed_s, &CodecCost::encode_s_per_byte,
                                       &CodecCost::decode_fixed_s, &CodecCost::decode_s_per_byte};

/// Of an even number the larger one in the middle. `values` is not empty.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> seconds_per_byte(const std::vector<Sample>& samples) {
  double largest = 0;
  for (const Sample& sample : samples) largest = std::max(largest, sample.bytes);
  std::vector<double> costs;
  for (const Sample& sample : samples) {
    if (sample.bytes > 0 && sample.bytes * 2 >= largest) costs.push_back(sample.seconds / sample.bytes);
  }
  if (costs.empty()) return std::nullopt;
  return median(std::move(costs));
}

void put_link(ByteWriter& writer, const std::optional<double>& cost) { writer.put(cost.value_or(-1)); }

double get_cost(ByteReader& reader, double least) {
  const auto cost = reader.get<double>();
  if (!std::isfinite(cost) || cost < least) throw CorruptPayload("a message of costs holds a number that is no cost");
  return cost;
}

std::optional<double> get_link(ByteReader& reader) {
  const double cost = get_cost(reader, -1);
  return cost < 0 ? std::nullopt : std::optional(cost);
}

}  // namespace

bool operator==(const MeasuredCosts& a, const MeasuredCosts& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.first == y.first &&
           std::all_of(kFields.begin(), kFields.end(), [&](Field f) { return x.second.*f == y.second.*f; });
  };
  return a.inter == b.inter && a.intra == b.intra &&
         std::equal(a.codecs.begin(), a.codecs.end(), b.codecs.begin(), b.codecs.end(), same);
}

void put(std::vector<std::byte>& out, const MeasuredCosts& costs) {
  ByteWriter writer(out);
  put_link(writer, costs.inter);
  put_link(writer, costs.intra);
  writer.put(static_cast<std::uint32_t>(costs.codecs.size()));
  for (const auto& [codec, cost] : costs.codecs) {
    writer.put_text(codec);
    for (const Field field : kFields) writer.put(cost.*field);
  }
}

MeasuredCosts get_measured_costs(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  MeasuredCosts costs;
  costs.inter = get_link(reader);
  costs.intra = get_link(reader);
  const auto codecs = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < codecs; ++i) {
    CodecCost& cost = costs.codecs[reader.get_text()];
    for (const Field field : kFields) cost.*field = get_cost(reader, 0);
  }
  return costs;
}

MeasuredCosts reduce(std::span<const MeasuredCosts> ranks) {
  MeasuredCosts reduced;
  std::map<std::string, std::vector<CodecCost>> codecs;
  for (const MeasuredCosts& rank : ranks) {
    reduced.inter = std::max(reduced.inter, rank.inter);  // nothing is less than any number
    reduced.intra = std::max(reduced.intra, rank.intra);
    for (const auto& [codec, cost] : rank.codecs) codecs[codec].push_back(cost);
  }
  for (const auto& [codec, costs] : codecs) {
    for (const Field field : kFields) {
      std::vector<double> values;
      for (const CodecCost& cost : costs) values.push_back(cost.*field);
      reduced.codecs[codec].*field = median(std::move(values));
    }
  }
  return reduced;
}

CostTable measured_over(const MeasuredCosts& measured, const CostTable& prior) {
  CostTable table = prior;
  table.inter.seconds_per_byte = measured.inter.value_or(prior.inter.seconds_per_byte);
  table.intra.seconds_per_byte = measured.intra.value_or(prior.intra.seconds_per_byte);
  for (const auto& [codec, cost] : measured.codecs) table.codecs[codec] = cost;
  return table;
}

void Measurements::add(const Measurement& measurement) {
  const auto keep = [&](std::vector<Sample>& samples) {
    if (samples.size() < kMost) samples.push_back({measurement.bytes, measurement.seconds});
  };
  switch (measurement.kind) {
    case CostKind::encode:
      keep(codecs_[std::string(measurement.codec)].encode);
      break;
    case CostKind::decode:
      keep(codecs_[std::string(measurement.codec)].decode);
      break;
    case CostKind::inter:
      keep(inter_);
      break;
    case CostKind::intra:
      keep(intra_);
      break;
  }
}

bool Measurements::has(std::string_view codec) const {
  const auto at = codecs_.find(codec);
  return at != codecs_.end() && !at->second.encode.empty() && !at->second.decode.empty();
}

MeasuredCosts Measurements::costs() const {
  MeasuredCosts costs{seconds_per_byte(inter_), seconds_per_byte(intra_), {}};
  for (const auto& [codec, samples] : codecs_) {
    if (samples.encode.empty() || samples.decode.empty()) continue;
    const Line encode = fit_line(samples.encode);
    const Line decode = fit_line(samples.decode);
    costs.codecs[codec] = {encode.fixed_s, encode.s_per_byte, decode.fixed_s, decode.s_per_byte};
  }
  return costs;
}

}  // namespace casync
