// Runs the device's kernels for elements of a gradient's own dtype in lockstep, or on a device, and the CPU's beside
// them, over values of all kinds. Prints a line for each kernel and setting where they differ, then "done".
//
//   raw_test ORDER       as for compare
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "codec/cpu/kernels/kernels.hpp"
#include "codec/cuda/raw_kernels.hpp"
#include "device.hpp"

namespace casync::codec {
Reading reading() { return Reading::in_order; }
}  // namespace casync::codec

namespace {

using namespace casync::codec;
using device::DeviceArray;
namespace gpu = casync::codec::cuda;

enum class Half : std::uint16_t {};
enum class Brain : std::uint16_t {};

const Kernels& cpu = baseline::kKernels;
constexpr int kBlocks = 3;

constexpr std::int64_t pieces(std::int64_t n) { return (n + gpu::kPiece - 1) / gpu::kPiece; }

std::uint32_t random_word() {
  static std::uint32_t state = 1;
  state = state * 1664525U + 1013904223U;
  return state ^ state >> 15;
}

template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// Each float16 and bfloat16, what lies half-way to the next one, and both neighbours of that.
std::vector<float> floats() {
  std::vector<float> found;
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const std::uint32_t sign = (half & 0x8000U) << 16;
    for (const std::uint32_t past : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U})
      found.push_back(bits_as<float>((half << 16) + past));
    for (const std::uint32_t past : {0U, 0xfffU, 0x1000U, 0x1001U})
      found.push_back(bits_as<float>(sign | (((half & 0x7fffU) << 13) + (112U << 23) + past)));
  }
  for (int k = 0; k < 4096; ++k) {  // multiples of half the smallest subnormal float16
    const auto pattern = bits_as<std::uint32_t>(static_cast<float>(k) * 0x1p-25F);
    for (const std::uint32_t near : {pattern - (k > 0 ? 1U : 0U), pattern, pattern + 1})
      for (const std::uint32_t sign : {0U, 0x80000000U}) found.push_back(bits_as<float>(near | sign));
  }
  for (int i = 0; i < 100000; ++i) found.push_back(bits_as<float>(random_word()));
  return found;
}
std::vector<double> doubles() {
  std::vector<double> found;
  for (const float value : floats()) {
    found.push_back(value);
    found.push_back(static_cast<double>(value) * (1 + 0x1p-24));  // half-way to the next float
    found.push_back(static_cast<double>(value) * (1 + 0x1p-24 + 0x1p-50));
  }
  using limits = std::numeric_limits<double>;
  for (const double value : {limits::max(), limits::denorm_min(), limits::infinity(), limits::quiet_NaN(), 0x1p-150,
                             0x1.8p-150, 0x1.ffffffp127, 0x1.fffffefp127})
    for (const double sign : {1.0, -1.0}) found.push_back(sign * value);
  return found;
}
template <typename T>
std::vector<T> all_of() {
  std::vector<T> found(0x10000);
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = static_cast<T>(i);
  return found;
}

/// Any NaN is as good as another.
bool same(float a, float b) { return bits_as<std::uint32_t>(a) == bits_as<std::uint32_t>(b) || (a != a && b != b); }
bool same(double a, double b) { return bits_as<std::uint64_t>(a) == bits_as<std::uint64_t>(b) || (a != a && b != b); }
template <typename T>
bool same_unless_nan(T a, T b, int infinity) {
  const auto nan = [&](T value) { return (static_cast<int>(value) & 0x7fff) > infinity; };
  return a == b || (nan(a) && nan(b));
}
bool same(Half a, Half b) { return same_unless_nan(a, b, 0x7c00); }
bool same(Brain a, Brain b) { return same_unless_nan(a, b, 0x7f80); }

template <typename T>
void expect_same(const std::string& what, const std::vector<T>& of_cpu, bool lost, const DeviceArray<T>& of_gpu,
                 const DeviceArray<std::int32_t>& nonfinite) {
  const std::vector<T> got = of_gpu.copy();
  for (std::size_t i = 0; i < of_cpu.size(); ++i)
    if (!same(of_cpu[i], got[i])) {
      std::printf("%s: element %zu: %g and %g\n", what.c_str(), i, static_cast<double>(of_cpu[i]),
                  static_cast<double>(got[i]));
      break;
    }
  if (lost != (nonfinite.copy()[0] != 0)) std::printf("%s: the CPU says %d for not finite\n", what.c_str(), lost);
}

template <typename T>
void loads(int dtype, const std::vector<T>& src) {
  std::vector<float> addend(src.size());
  for (float& value : addend) value = static_cast<float>(random_word() % 1000) * 0.01F - 5.0F;
  const DeviceArray<T> gpu_src(src);
  const DeviceArray<float> gpu_addend(addend);
  const auto n = static_cast<std::int64_t>(src.size());
  for (const float factor : {1.0F, 1.0F / 3.0F, -0x1p-10F})
    for (const bool adds : {false, true}) {
      std::vector<float> out(src.size());
      const bool lost = cpu.load_raw[dtype](src.data(), factor, adds ? addend.data() : nullptr, out.data(), n);
      const DeviceArray<float> gpu_out(src.size());
      const DeviceArray<std::int32_t> nonfinite(std::vector<std::int32_t>{0});
      const gpu::RawLoad load{.src = gpu_src.data(),
                              .factor = factor,
                              .addend = adds ? gpu_addend.data() : nullptr,
                              .out = gpu_out.data(),
                              .n = n,
                              .nonfinite = nonfinite.data()};
      device::launch(gpu::kLoadRaw[dtype], pieces(n), load, n, kBlocks, nullptr);
      expect_same(std::string(gpu::kLoadRaw[dtype].name) + " times " + std::to_string(factor), out, lost, gpu_out,
                  nonfinite);
    }
}

template <typename T>
void stores(const gpu::DeviceKernel& kernel, StoreRaw of_cpu, const std::vector<float>& src) {
  const DeviceArray<float> gpu_src(src);
  const auto n = static_cast<std::int64_t>(src.size());
  for (const float first : {1.0F, 3.0F, 0x1p-20F})
    for (const float second : {1.0F, 1.0F / 7.0F}) {
      std::vector<T> dst(src.size());
      const bool lost = of_cpu(src.data(), first, second, dst.data(), n, false);
      const DeviceArray<T> gpu_dst(src.size());
      const DeviceArray<std::int32_t> nonfinite(std::vector<std::int32_t>{0});
      const gpu::RawStore store{.src = gpu_src.data(),
                                .first = first,
                                .second = second,
                                .dst = gpu_dst.data(),
                                .n = n,
                                .nonfinite = nonfinite.data()};
      device::launch(kernel, pieces(n), store, n, kBlocks, nullptr);
      expect_same(std::string(kernel.name) + " by " + std::to_string(first) + " and " + std::to_string(second), dst,
                  lost, gpu_dst, nonfinite);
    }
}

/// Three sources, of which the second is raw. The payloads begin at an odd address.
template <typename T>
void merges(int dtype, const std::vector<T>& values) {
  std::vector<float> raw = floats();
  raw.resize(values.size());
  const std::size_t bytes = values.size() * sizeof(T);
  std::vector<std::byte> payload(1 + bytes + 64);
  std::vector<std::byte> turned(1 + bytes + 64);
  std::vector<T> backwards(values.rbegin(), values.rend());
  std::memcpy(payload.data() + 1, values.data(), bytes);
  std::memcpy(turned.data() + 1, backwards.data(), bytes);
  const MergeSource sources[]{
      {.payload = payload.data() + 1}, {.raw = raw.data(), .factor = 0.25F}, {.payload = turned.data() + 1}};
  const auto n = static_cast<std::int64_t>(values.size());
  const DeviceArray<std::byte> gpu_payload(payload);
  const DeviceArray<std::byte> gpu_turned(turned);
  const DeviceArray<float> gpu_raw(raw);
  for (const int count : {1, 2, 3}) {
    std::vector<float> out(values.size());
    const bool lost = cpu.merge_raw[dtype](sources, count, out.data(), n, false);
    const DeviceArray<float> gpu_out(values.size());
    const DeviceArray<std::int32_t> nonfinite(std::vector<std::int32_t>{0});
    const gpu::RawMerge merge{.sources = {{.payload = gpu_payload.data() + 1},
                                          {.raw = gpu_raw.data(), .factor = 0.25F},
                                          {.payload = gpu_turned.data() + 1}},
                              .count = count,
                              .out = gpu_out.data(),
                              .n = n,
                              .nonfinite = nonfinite.data()};
    device::launch(gpu::kMergeRaw[dtype], pieces(n), merge, n, kBlocks, nullptr);
    expect_same(std::string(gpu::kMergeRaw[dtype].name) + " of " + std::to_string(count), out, lost, gpu_out,
                nonfinite);
  }
}

/// The largest of two sources, of which either may be NaN.
void take_the_largest(const std::vector<float>& values) {
  const std::vector<float> backwards(values.rbegin(), values.rend());
  std::vector<float> out;
  bool lost = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool one_is_nan = std::isnan(values[i]) || std::isnan(backwards[i]);
    out.push_back(one_is_nan ? std::numeric_limits<float>::quiet_NaN() : std::max(values[i], backwards[i]));
    lost |= !std::isfinite(out.back());
  }
  const DeviceArray<float> gpu_values(values);
  const DeviceArray<float> gpu_backwards(backwards);
  const DeviceArray<float> gpu_out(values.size());
  const DeviceArray<std::int32_t> nonfinite(std::vector<std::int32_t>{0});
  const gpu::RawMerge merge{.sources = {{.raw = gpu_values.data()}, {.raw = gpu_backwards.data()}},
                            .count = 2,
                            .largest = true,
                            .out = gpu_out.data(),
                            .n = static_cast<std::int64_t>(values.size()),
                            .nonfinite = nonfinite.data()};
  device::launch(gpu::kMergeRaw[0], pieces(merge.n), merge, merge.n, kBlocks, nullptr);
  expect_same("the largest of two", out, lost, gpu_out, nonfinite);
}

/// Values that stay finite, up to the largest that a dtype rounds to a number and the first that it does not.
void store_near_the_limit(int dtype, float largest, float first_lost) {
  for (const std::vector<float>& src : {std::vector<float>{1.0F, -largest}, std::vector<float>{-first_lost, 2.0F}}) {
    if (dtype == 0) stores<float>(gpu::kStoreRaw[0], cpu.store_raw[0], src);
    if (dtype == 1) stores<Half>(gpu::kStoreRaw[1], cpu.store_raw[1], src);
    if (dtype == 2) stores<Brain>(gpu::kStoreRaw[2], cpu.store_raw[2], src);
    if (dtype == 3) stores<double>(gpu::kStoreRaw[3], cpu.store_raw[3], src);
  }
}

}  // namespace

int main(int, char** arguments) {
  device::load(arguments[1]);
  const std::vector<float> values = floats();
  loads<float>(0, values);
  loads<Half>(1, all_of<Half>());
  loads<Brain>(2, all_of<Brain>());
  loads<double>(3, doubles());
  loads<float>(0, {1.0F, 2.0F, -3.0F});  // nothing is lost
  loads<float>(0, {});
  stores<float>(gpu::kStoreRaw[0], cpu.store_raw[0], values);
  stores<double>(gpu::kStoreRaw[3], cpu.store_raw[3], values);
  stores<float>(gpu::kDivideRaw[0], cpu.divide_raw[0], values);
  stores<Half>(gpu::kStoreRaw[1], cpu.store_raw[1], values);
  stores<Half>(gpu::kDivideRaw[1], cpu.divide_raw[1], values);
  stores<Brain>(gpu::kStoreRaw[2], cpu.store_raw[2], values);
  stores<Brain>(gpu::kDivideRaw[2], cpu.divide_raw[2], values);
  store_near_the_limit(0, 0x1.fffffep127F, std::numeric_limits<float>::infinity());
  store_near_the_limit(1, 0x1.ffdffep15F, 65520.0F);
  store_near_the_limit(2, 0x1.fefffep127F, 0x1.ffp127F);
  store_near_the_limit(3, 0x1.fffffep127F, std::numeric_limits<float>::infinity());
  merges<float>(0, values);
  take_the_largest(values);
  take_the_largest({1.0F, -2.0F, 3.0F, 0.5F});
  merges<Half>(1, all_of<Half>());
  merges<Brain>(2, all_of<Brain>());
  std::puts("done");
  return 0;
}
