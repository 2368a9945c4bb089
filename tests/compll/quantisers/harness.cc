// Runs generated inner loops over one unit: argument 1 is the number of the choice, argument 2 says whether there is a
// residual, argument 3 how memory is read. In: n as text, mid, n floats, n floats of residual.
// Out: payload, residual, decoded values.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "codec/cpu/kernels/kernels.hpp"

namespace casync::codec {
Reading chosen{};
Reading reading() { return chosen; }
namespace CASYNC_KERNEL_ISA {
extern const UnitKernels HARNESS_KERNELS[];
}
}  // namespace casync::codec

int main(int, char** arguments) {
  using namespace casync::codec;
  const UnitKernels& kernels = CASYNC_KERNEL_ISA::HARNESS_KERNELS[std::atoi(arguments[1])];
  const bool feedback = std::atoi(arguments[2]) != 0;
  chosen = static_cast<Reading>(std::atoi(arguments[3]));
  int n = 0;
  float mid = 0;
  long payload_bytes = 0;
  while (std::fread(&n, 4, 1, stdin) == 1) {
    if (std::fread(&mid, 4, 1, stdin) != 1 || std::fread(&payload_bytes, 8, 1, stdin) != 1) return 1;
    const auto size = static_cast<std::size_t>(n);
    std::vector<float> x(size), residual(size), out(size);
    if (std::fread(x.data(), 4, size, stdin) != size || std::fread(residual.data(), 4, size, stdin) != size) return 1;
    std::vector<std::byte> payload(static_cast<std::size_t>(payload_bytes));
    Facts facts{.n = n, .step = 5000, .key = {0x0123456789ABCDEF, 5000, 0, 0, 0}};
    const UnitJob job{.facts = facts,
                      .accumulated = x.data(),
                      .residual = feedback ? residual.data() : nullptr,
                      .mid = mid,
                      .payload = payload.data()};
    const bool nonfinite = kernels.encode(job);
    const MergeSource source{.payload = payload.data(), .facts = &facts};
    kernels.merge(&source, 1, out.data(), n, false);
    std::fputc(nonfinite ? 1 : 0, stdout);
    std::fwrite(payload.data(), 1, payload.size(), stdout);
    std::fwrite(residual.data(), 4, size, stdout);
    std::fwrite(out.data(), 4, size, stdout);
  }
  return 0;
}
