#include "codec/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace casync::test::reference {
namespace {

template <typename Element>
double read_as(const std::byte* array, std::size_t i) {
  Element element{};
  std::memcpy(&element, array + i * sizeof element, sizeof element);
  return static_cast<double>(element);
}

template <typename Element>
void write_as(std::byte* array, std::size_t i, double value) {
  const auto element = static_cast<Element>(value);
  std::memcpy(array + i * sizeof element, &element, sizeof element);
}

/// A binary format of 16 bits with `mantissa` stored bits.
double from_bits(std::uint32_t bits, int mantissa) {
  const int exponent_bits = 15 - mantissa;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((bits & 0x7fffU) >> mantissa);
  const auto fraction = static_cast<double>(bits & ((1U << mantissa) - 1U));
  if (exponent == (1 << exponent_bits) - 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa);
  return sign * std::ldexp(1.0 + std::ldexp(fraction, -mantissa), exponent - bias);
}

std::uint32_t to_bits(double value, int mantissa) {
  const int exponent_bits = 15 - mantissa;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  const auto infinity = static_cast<std::uint32_t>((1 << exponent_bits) - 1) << mantissa;
  if (std::isnan(value)) return sign | infinity | 1U << (mantissa - 1);
  const double rounded = std::abs(round_to(value, mantissa, exponent_bits));
  if (std::isinf(rounded)) return sign | infinity;
  if (rounded < std::ldexp(1.0, 1 - bias))
    return sign | static_cast<std::uint32_t>(std::ldexp(rounded, bias - 1 + mantissa));
  const int exponent = std::ilogb(rounded);
  const double fraction = std::ldexp(rounded, mantissa - exponent) - std::ldexp(1.0, mantissa);
  return sign | static_cast<std::uint32_t>(exponent + bias) << mantissa | static_cast<std::uint32_t>(fraction);
}

}  // namespace

double round_to(double value, int mantissa, int exponent) {
  if (!std::isfinite(value) || value == 0) return value;
  const int bias = (1 << (exponent - 1)) - 1;
  const int scale = std::max(std::ilogb(value), 1 - bias) - mantissa;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -scale)), scale);
  return std::abs(rounded) >= std::ldexp(1.0, bias + 1) ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                                        : rounded;
}

double read(const std::byte* array, std::size_t i, DType dtype) {
  switch (dtype) {
    case DType::float32:
      return read_as<float>(array, i);
    case DType::float16:
    case DType::bfloat16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, array + 2 * i, 2);
      return from_bits(bits, dtype == DType::float16 ? 10 : 7);
    }
    case DType::float64:
      return read_as<double>(array, i);
    case DType::int8:
      return read_as<std::int8_t>(array, i);
    case DType::int16:
      return read_as<std::int16_t>(array, i);
    case DType::int32:
      return read_as<std::int32_t>(array, i);
    case DType::int64:
      return read_as<std::int64_t>(array, i);
    case DType::uint16:
      return read_as<std::uint16_t>(array, i);
    case DType::uint8:
    case DType::boolean:
      return read_as<std::uint8_t>(array, i);
  }
  return 0;
}

void write(std::byte* array, std::size_t i, DType dtype, double value) {
  switch (dtype) {
    case DType::float32:
      return write_as<float>(array, i, value);
    case DType::float16:
    case DType::bfloat16: {
      const auto bits = static_cast<std::uint16_t>(to_bits(value, dtype == DType::float16 ? 10 : 7));
      std::memcpy(array + 2 * i, &bits, 2);
      return;
    }
    case DType::float64:
      return write_as<double>(array, i, value);
    case DType::int8:
      return write_as<std::int8_t>(array, i, value);
    case DType::int16:
      return write_as<std::int16_t>(array, i, value);
    case DType::int32:
      return write_as<std::int32_t>(array, i, value);
    case DType::int64:
      return write_as<std::int64_t>(array, i, value);
    case DType::uint8:
      return write_as<std::uint8_t>(array, i, value);
    case DType::uint16:
      return write_as<std::uint16_t>(array, i, value);
    case DType::boolean:
      return write_as<std::uint8_t>(array, i, value != 0 ? 1.0 : 0.0);
  }
}

std::vector<double> adasum(const std::vector<std::vector<double>>& contributions) {
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  if (contributions.size() == 1) return contributions[0];
  std::vector<std::vector<double>> next;
  for (std::size_t i = 0; i + 1 < contributions.size(); i += 2) {
    const std::vector<double>& a = contributions[i];
    const std::vector<double>& b = contributions[i + 1];
    const double x = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / dot(a, a) / 2;
    const double y = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / dot(b, b) / 2;
    std::vector<double>& pair = next.emplace_back(a.size());
    for (std::size_t e = 0; e < a.size(); ++e) pair[e] = x * a[e] + y * b[e];
  }
  if (contributions.size() % 2 == 1) next.push_back(contributions.back());
  return adasum(next);
}

std::vector<std::pair<std::int64_t, std::int64_t>> onebit_groups(Shape shape) {
  std::vector<std::pair<std::int64_t, std::int64_t>> groups;
  const std::int64_t numel = shape.numel();
  if (shape.cols > 4096) {
    const std::int64_t pieces = (shape.cols + 4095) / 4096;
    const std::int64_t piece = (shape.cols + pieces - 1) / pieces;
    for (std::int64_t row = 0; row < shape.rows; ++row)
      for (std::int64_t at = 0; at < shape.cols; at += piece)
        groups.emplace_back(row * shape.cols + at, row * shape.cols + std::min(at + piece, shape.cols));
    return groups;
  }
  for (std::int64_t begin = 0; begin < numel;) {
    std::int64_t end = begin;
    do end += shape.cols;
    while (end - begin < 256 && end < numel);
    groups.emplace_back(begin, end);
    begin = end;
  }
  return groups;
}

Words philox7(Words counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 7; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53U} * counter.word[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57U} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(right >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(right),
                static_cast<std::uint32_t>(left >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(left)}};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

std::uint32_t draw(std::uint64_t name_hash, std::uint32_t sequence, std::uint32_t round, std::uint32_t stream,
                   std::int64_t coordinate) {
  const auto block = static_cast<std::uint64_t>(coordinate) / 128 * 16 + static_cast<std::uint64_t>(coordinate) % 16;
  const Words words = philox7(
      {{static_cast<std::uint32_t>(block), sequence, round | static_cast<std::uint32_t>(block >> 32) << 8, stream}},
      static_cast<std::uint32_t>(name_hash), static_cast<std::uint32_t>(name_hash >> 32));
  const auto which = static_cast<std::uint64_t>(coordinate) / 16 % 8;
  return words.word[which / 2] >> (16 * (which % 2)) & 0xffffU;
}

}  // namespace casync::test::reference
