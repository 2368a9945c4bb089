#include "each_isa.hpp"

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

}  // namespace casync::test
