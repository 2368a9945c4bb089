#include "planner/cost/codec_times.hpp"

#include <cmath>
#include <vector>

namespace casync {

void CodecTimes::add(std::string_view name, Call call, const Sample& sample, Basis basis) {
  if (sample.bytes <= 0) return;
  Codec& codec = codecs_[std::string(name)];
  Calls& calls = call == Call::encode ? codec.encode : codec.decode;
  if (basis < calls.basis) return;
  if (basis > calls.basis) calls = {{}, basis};
  calls.by_size[std::ilogb(sample.bytes)].add(sample);
}

bool CodecTimes::has(std::string_view name) const {
  const auto at = codecs_.find(name);
  return at != codecs_.end() && !at->second.encode.by_size.empty() && !at->second.decode.by_size.empty();
}

Line CodecTimes::line(const Calls& calls) {
  std::vector<Sample> samples;
  for (const auto& [size, of_size] : calls.by_size)
    samples.insert(samples.end(), of_size.values().begin(), of_size.values().end());
  const Line line = fit_line(samples);
  if (line.s_per_byte > 0 || samples.empty()) return line;
  // The calls scatter more than their sizes differ.
  std::vector<double> rates;
  for (const Sample& sample : samples) rates.push_back(sample.seconds / sample.bytes);
  return {0, median(rates)};
}

std::map<std::string, CodecCost, std::less<>> CodecTimes::costs() const {
  std::map<std::string, CodecCost, std::less<>> costs;
  for (const auto& [name, codec] : codecs_) {
    if (!has(name)) continue;
    const Line encode = line(codec.encode);
    const Line decode = line(codec.decode);
    costs[name] = {encode.fixed_s, encode.s_per_byte, decode.fixed_s, decode.s_per_byte};
  }
  return costs;
}

}  // namespace casync
