// Decodes what no encoder wrote, under sanitizers: payloads cut short, with bits turned over, of random bytes. Argument
// 1 is the number of rounds, argument 2 the seed. In: the parameters' bytes behind their number, then payloads behind n
// and their own length. Out: how many were refused, and how many were not.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "harness.hpp"

namespace {

using Bytes = std::vector<unsigned char>;
using namespace casync::codec;

template <typename T>
bool read(T& value) {
  return std::fread(&value, sizeof value, 1, stdin) == 1;
}

Bytes read_bytes(std::size_t count) {
  Bytes bytes(count);
  if (std::fread(bytes.data(), 1, count, stdin) != count) std::exit(1);
  return bytes;
}

struct Unit {
  Given given{};
  std::vector<std::vector<float>> arrays;
  std::vector<float*> places;

  Unit(std::int64_t n, const Parameter* parameters, int states) {
    given.n = n;
    given.parameters = parameters;
    given.rows = 1;
    given.cols = static_cast<std::int32_t>(n);
    given.step = 5000;
    given.world = 1;
    while (!given.kernels().fits(given.facts(0))) ++given.choice;
    for (int state = 0; state < states; ++state) {
      arrays.emplace_back(static_cast<std::size_t>(given.kernels().elements(given.facts(0), state)), 0.5F);
      places.push_back(arrays.back().data());
    }
    given.state = places.data();
  }

  /// At an odd address, and with nothing behind it.
  bool decodes(const Bytes& payload, Into into) {
    const std::unique_ptr<std::byte[]> memory(new std::byte[payload.size() + 1]);
    if (!payload.empty()) std::memcpy(memory.get() + 1, payload.data(), payload.size());
    const Facts facts = given.facts(0);
    Scratch scratch(given.kernels().scratch_bytes(facts));
    std::vector<float> out(static_cast<std::size_t>(given.n), 1.0F);
    const std::vector<float> accumulated(static_cast<std::size_t>(given.n), 2.0F);
    const DecodeJob job{.facts = facts,
                        .payload = memory.get() + 1,
                        .payload_end = memory.get() + 1 + payload.size(),
                        .scratch = scratch.data(),
                        .out = out.data(),
                        .accumulated = accumulated.data(),
                        .keep = true};
    const std::int64_t used = given.kernels().decode_unit(job, into);
    if (used < -1 || used > static_cast<std::int64_t>(payload.size())) std::abort();
    return used >= 0;
  }
};

Bytes changed(Bytes payload, std::mt19937& random) {
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  switch (random() % 5) {
    case 0:
      payload.resize(below(payload.size() + 1));
      break;
    case 1:
      for (std::size_t i = 0; i <= below(8) && !payload.empty(); ++i)
        payload[below(payload.size())] ^= static_cast<unsigned char>(1U << below(8));
      break;
    case 2:
      for (unsigned char& byte : payload) byte = static_cast<unsigned char>(random());
      break;
    case 3:
      for (std::size_t i = below(payload.size()), end = i + 4; i < end && i < payload.size(); ++i)
        payload[i] = random() % 2 == 0 ? 0xff : 0x7f;
      break;
    default:
      payload.resize(payload.size() + below(64), static_cast<unsigned char>(random()));
  }
  return payload;
}

}  // namespace

int main(int, char** arguments) {
  const int rounds = std::atoi(arguments[1]);
  std::mt19937 random(static_cast<unsigned>(std::atoi(arguments[2])));
  std::int32_t parameters = 0;
  std::int32_t states = 0;
  if (!read(parameters) || !read(states)) return 1;
  std::vector<Parameter> values(static_cast<std::size_t>(parameters) + 1);
  if (std::fread(values.data(), 4, static_cast<std::size_t>(parameters), stdin) != static_cast<std::size_t>(parameters))
    return 1;
  long counts[2]{};
  std::int64_t n = 0;
  std::int64_t bytes = 0;
  while (read(n) && read(bytes)) {
    const Bytes payload = read_bytes(static_cast<std::size_t>(bytes));
    Unit unit(n, values.data(), states);
    if (!unit.decodes(payload, Into::set)) return 1;
    for (int round = 0; round < rounds; ++round) {
      Bytes hostile = changed(payload, random);
      if (random() % 4 == 0) hostile = changed(hostile, random);
      ++counts[unit.decodes(hostile, static_cast<Into>(random() % 3)) ? 1 : 0];
    }
  }
  std::printf("%ld %ld\n", counts[0], counts[1]);
  return 0;
}
