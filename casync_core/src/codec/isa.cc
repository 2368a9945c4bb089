#if defined(CASYNC_X86_KERNELS)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "casync/codec.hpp"
#include "casync/error.hpp"
#include "codec/cpu/kernels/kernels.hpp"

namespace casync {
namespace {

constexpr std::string_view kIsaName[]{"baseline", "avx2", "avx512"};

std::string_view name_of(Isa isa) { return kIsaName[static_cast<std::size_t>(isa)]; }

#if defined(CASYNC_X86_KERNELS)
/// Asked of the processor: clang's __builtin_cpu_supports long did not know the name.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

#if defined(CASYNC_X86_KERNELS)
/// As AMD's manuals count: 25 is Zen 3 and 4, 26 Zen 5. Older compilers have no name for it.
constexpr unsigned kZen5 = 26;
unsigned processor_family() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return 0;
  return (eax >> 8 & 0xfU) + (eax >> 20 & 0xffU);
}
#endif

Isa detect() {
#if defined(CASYNC_X86_KERNELS)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && has_f16c();
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (avx2 && avx512) return Isa::avx512;
  if (avx2) return Isa::avx2;
#endif
  return Isa::baseline;
}

/// What CASYNC_ISA asks for; best_isa() where it is unset. An unknown or unavailable name is an error, never a quiet
/// fallback.
Isa initial_isa() {
  const char* text = std::getenv("CASYNC_ISA");
  if (text == nullptr || *text == '\0') return best_isa();
  for (std::size_t i = 0; i < std::size(kIsaName); ++i) {
    if (kIsaName[i] != text) continue;
    const auto isa = static_cast<Isa>(i);
    if (isa > best_isa())
      throw InvalidArgument(
          detail::concat("CASYNC_ISA=", text, ": this processor offers at most ", name_of(best_isa())));
    return isa;
  }
  throw InvalidArgument(detail::concat("CASYNC_ISA=", text, " is not known; use baseline, avx2 or avx512"));
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

}  // namespace

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa current_isa() { return chosen_isa().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  if (isa > best_isa())
    throw InvalidArgument(
        detail::concat("force_isa(", name_of(isa), "): this processor offers at most ", name_of(best_isa())));
  chosen_isa().store(isa, std::memory_order_relaxed);
}

namespace codec {

namespace {

Reading best_reading() {
#if defined(CASYNC_X86_KERNELS)
  if (__builtin_cpu_is("intel") != 0) return Reading::side_by_side;
  if (__builtin_cpu_is("amd") != 0 && processor_family() >= kZen5) return Reading::fetched;
#endif
  return Reading::in_order;
}

std::atomic<Reading>& chosen_reading() {
  static std::atomic<Reading> chosen{best_reading()};
  return chosen;
}

}  // namespace

Reading reading() { return chosen_reading().load(std::memory_order_relaxed); }
void force_reading(Reading chosen) { chosen_reading().store(chosen, std::memory_order_relaxed); }

const Kernels& kernels() {
#if defined(CASYNC_X86_KERNELS)
  switch (current_isa()) {
    case Isa::avx512:
      return avx512::kKernels;
    case Isa::avx2:
      return avx2::kKernels;
    case Isa::baseline:
      break;
  }
#endif
  return baseline::kKernels;
}

}  // namespace codec
}  // namespace casync
