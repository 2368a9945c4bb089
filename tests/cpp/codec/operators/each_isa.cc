#include "each_isa.hpp"

#include <algorithm>
#include <cmath>

namespace casync::test {

std::vector<float> values_of(Kind kind, std::int64_t n) {
  Seeded random(static_cast<std::uint64_t>(n) + 17);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& value : out) {
    switch (kind) {
      case Kind::random:
        value = static_cast<float>(random.normal() * std::exp2(10 * random.uniform()));
        break;
      case Kind::ties:
        value = static_cast<float>(std::floor(random.uniform() * 9) - 4);
        break;
      case Kind::equal:
        value = -0.75F;
        break;
      case Kind::zeros:
        value = random.uniform() < 0.5 ? -0.0F : 0.0F;
        break;
      case Kind::subnormal:
        value = static_cast<float>(random.normal() * 1e-42);
        break;
    }
  }
  return out;
}

float tree_sum(const std::vector<float>& x) {
  float total = 0;
  for (std::size_t from = 0; from < x.size(); from += 1024) {
    float lane[16]{};
    for (std::size_t i = from; i < std::min(from + 1024, x.size()); ++i) lane[i % 16] = lane[i % 16] + x[i];
    for (int apart = 8; apart > 0; apart /= 2)
      for (int j = 0; j < apart; ++j) lane[j] = lane[j] + lane[j + apart];
    total = total + lane[0];
  }
  return total;
}

}  // namespace casync::test
