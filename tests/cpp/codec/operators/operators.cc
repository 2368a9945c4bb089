#include "operators.hpp"

#include "codec/cpu/kernels/operators/append.hpp"
#include "codec/cpu/kernels/operators/select.hpp"
#include "codec/cpu/kernels/operators/topk.hpp"

namespace casync::codec::CASYNC_KERNEL_ISA {
namespace {

std::int64_t append_by_masks(const float* values, const std::uint16_t* masks, std::int64_t n, float* value_out,
                             std::int32_t* index_out) {
  std::int64_t values_found = 0;
  std::int64_t indices_found = 0;
  for (std::int64_t i = 0; i < n; i += 16) {
    const Mask16 mask = mask_of(masks[i / 16]);
    values_found += append(mask, load(values + i), value_out + values_found);
    indices_found += append(mask, add(lanes(static_cast<std::int32_t>(i)), lane_numbers()), index_out + indices_found);
  }
  return values_found == indices_found ? values_found : -1;
}

}  // namespace

const Operators kOperators{
    .append = append_by_masks,

    .nth_largest = nth_largest<float>,
    .nth_smallest = nth_smallest<float>,
    .nth_largest_integer = nth_largest<std::int32_t>,
    .nth_smallest_integer = nth_smallest<std::int32_t>,
    .topk = topk<float>,
    .topk_integers = topk<std::int32_t>,
};

}  // namespace casync::codec::CASYNC_KERNEL_ISA
