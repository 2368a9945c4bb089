#include "operators.hpp"

#include "codec/cpu/kernels/arrays.hpp"
#include "codec/cpu/kernels/operators/append.hpp"
#include "codec/cpu/kernels/operators/draws.hpp"
#include "codec/cpu/kernels/operators/elementary.hpp"
#include "codec/cpu/kernels/operators/hadamard.hpp"
#include "codec/cpu/kernels/operators/matmul.hpp"
#include "codec/cpu/kernels/operators/orth.hpp"
#include "codec/cpu/kernels/operators/rounding.hpp"
#include "codec/cpu/kernels/operators/runs.hpp"
#include "codec/cpu/kernels/operators/select.hpp"
#include "codec/cpu/kernels/operators/stable_sort.hpp"
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

/// n is a multiple of 16.
template <typename Function>
void sixteen(const float* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; i += 16) store(to + i, Function::of(load(from + i)));
}
template <typename Function>
void one(const float* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Function::of(from[i]);
}
template <typename Function>
void sixteen(const std::int32_t* a, const std::int32_t* b, std::int64_t n, std::int32_t* to) {
  for (std::int64_t i = 0; i < n; i += 16) store(to + i, Function::of(load(a + i), load(b + i)));
}
template <typename Function>
void one(const std::int32_t* a, const std::int32_t* b, std::int64_t n, std::int32_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = Function::of(a[i], b[i]);
}

#define CASYNC_OF_ONE(name, expression)     \
  struct name {                             \
    template <typename T>                   \
    CASYNC_INLINE static T of(const T& a) { \
      return expression;                    \
    }                                       \
  };
CASYNC_OF_ONE(Exp2, exp2(a))
CASYNC_OF_ONE(Log2, log2(a))
CASYNC_OF_ONE(Cosine, cosine(a))
CASYNC_OF_ONE(RoundNearest, round_nearest(a))
CASYNC_OF_ONE(RoundDown, round_down(a))
CASYNC_OF_ONE(RoundUp, round_up(a))
CASYNC_OF_ONE(SquareRoot, square_root(a))
#undef CASYNC_OF_ONE

#define CASYNC_OF_TWO(name, expression)                                  \
  struct name {                                                          \
    template <typename T>                                                \
    CASYNC_INLINE static T of(const T& a, [[maybe_unused]] const T& b) { \
      return expression;                                                 \
    }                                                                    \
  };
CASYNC_OF_TWO(Minus, minus(a))
CASYNC_OF_TWO(Magnitude, magnitude(a))
CASYNC_OF_TWO(ShiftLeft, shift_left(a, b))
CASYNC_OF_TWO(ShiftRight, shift_right(a, b))
CASYNC_OF_TWO(Divide, divide(a, b))
CASYNC_OF_TWO(Remainder, remainder(a, b))
#undef CASYNC_OF_TWO

template <std::int32_t kBy>
struct DivideBy {
  template <typename T>
  CASYNC_INLINE static T of(const T& a, const T&) {
    return divide_by<kBy>(a);
  }
};
template <std::int32_t kBy>
struct RemainderBy {
  template <typename T>
  CASYNC_INLINE static T of(const T& a, const T&) {
    return remainder_by<kBy>(a);
  }
};

template <typename Function>
constexpr Operators::OfFloats of_floats() {
  return {sixteen<Function>, one<Function>};
}
template <typename Function>
constexpr Operators::OfIntegers of_integers() {
  return {sixteen<Function>, one<Function>};
}
template <std::int32_t kBy>
constexpr Operators::ByConstant by() {
  return {kBy, of_integers<DivideBy<kBy>>(), of_integers<RemainderBy<kBy>>()};
}

struct Range {
  std::int32_t operator[](std::int64_t i) const { return static_cast<std::int32_t>(i); }
};

Matrix view(Operators::Matrix a) { return {a.values, a.rows, a.cols, a.transposed}; }

}  // namespace

const Operators kOperators{
    .append = append_by_masks,

    .nth_largest = nth_largest<float>,
    .nth_smallest = nth_smallest<float>,
    .nth_largest_integer = nth_largest<std::int32_t>,
    .nth_smallest_integer = nth_smallest<std::int32_t>,
    .topk = topk<float>,
    .topk_integers = topk<std::int32_t>,

    .exp2 = of_floats<Exp2>(),
    .log2 = of_floats<Log2>(),
    .cosine = of_floats<Cosine>(),
    .round_nearest = of_floats<RoundNearest>(),
    .round_down = of_floats<RoundDown>(),
    .round_up = of_floats<RoundUp>(),
    .square_root = of_floats<SquareRoot>(),

    .minus = of_integers<Minus>(),
    .magnitude = of_integers<Magnitude>(),
    .shift_left = of_integers<ShiftLeft>(),
    .shift_right = of_integers<ShiftRight>(),
    .divide = of_integers<Divide>(),
    .remainder = of_integers<Remainder>(),
    .divide_by = {by<0>(), by<1>(), by<-1>(), by<2>(), by<3>(), by<5>(), by<-7>(), by<50>(), by<81>(), by<500>(),
                  by<1024>(), by<0x7fffffff>(), by<-0x7fffffff - 1>()},

    .matmul = {[](const Operators::Matrix& a, const Operators::Matrix& b) { return matmul_scratch(view(a), view(b)); },
               [](const Operators::Matrix& a, const Operators::Matrix& b, float* out, float* scratch) {
                 matmul(view(a), view(b), out, scratch);
               }},
    .computed_matmul = {[](const Operators::Matrix& a, const Operators::Matrix& b) {
                          return computed_matmul_scratch(view(a), view(b));
                        },
                        [](const Operators::Matrix& a, const Operators::Matrix& b, float* out, float* scratch) {
                          const auto at = [&](std::int64_t i, std::int64_t count) {
                            return elements(a.values, i, count);
                          };
                          computed_matmul({nullptr, a.rows, a.cols, a.transposed}, at, view(b), out, scratch);
                        }},
    .matmul_into = {[](const Operators::Matrix& a, const Operators::Matrix& b) {
                      return matmul_scratch(view(a), view(b));
                    },
                    [](const Operators::Matrix& a, const Operators::Matrix& b, float* out, float* scratch) {
                      matmul_into(
                          view(a), view(b), scratch,
                          [&](std::int64_t i, std::int64_t count, const F32x16& value) { put(out, i, count, value); });
                    }},
    .orth = orth,

    .runlength = runlength<std::int32_t>,
    .runlength_bytes = runlength<std::uint8_t>,
    .repeat = [](const std::uint8_t* values, const std::int32_t* counts, std::int64_t m, std::int64_t n,
                 std::uint8_t* out) { return repeat(values, counts, m, n, out); },
    .repeat_range = [](const std::uint8_t* counts, std::int64_t m, std::int64_t n,
                       std::int32_t* out) { return repeat(Range{}, counts, m, n, out); },

    .code_runs =
        [](const std::uint8_t* values, std::int64_t n, std::uint8_t value, std::int64_t longest,
           const std::uint8_t* alone, const std::uint8_t* run,
           std::uint8_t* codes) { return runlength(values, n, value, longest, alone, run, codes, [](auto...) {}); },
    .repeat_codes = [](const std::uint8_t* codes, const std::uint8_t* value_of, const std::int32_t* count_of,
                       std::int64_t m, std::int64_t n,
                       std::uint8_t* out) { return repeat(codes, value_of, count_of, m, n, out); },

    .hadamard = hadamard,

    .draw_one = draw_one,
    .draw_sixteen = [](const RandomKey& key, std::uint64_t coordinate,
                       std::int32_t* out) { store(out, draw_sixteen(key, coordinate)); },

    .stable_sort =
        [](Operators::Keyed* data, Operators::Keyed* spare, std::int64_t n) {
          stable_sort(data, spare, n,
                      [](const Operators::Keyed& a, const Operators::Keyed& b) { return a.key <= b.key; });
        },
};

}  // namespace casync::codec::CASYNC_KERNEL_ISA
