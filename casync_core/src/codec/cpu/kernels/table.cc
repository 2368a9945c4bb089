#include "codec/cpu/kernels/entries.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

void fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace

const Kernels kKernels{
    .load_raw = {load_float32, load_float16, load_bfloat16, load_float64},
    .store_raw = {store_float32, store_float16, store_bfloat16, store_float64},
    .divide_raw = {divide_float32, divide_float16, divide_bfloat16},
    .merge_raw = {merge_float32, merge_float16, merge_bfloat16},
    .fence = fence,
};

}  // namespace casync::codec::CASYNC_KERNEL_ISA
