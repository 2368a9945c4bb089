#include <functional>

#include "each_isa.hpp"

namespace casync::test {
namespace {

using Integers = std::vector<std::int32_t>;
using Reference = std::function<std::int64_t(std::int64_t, std::int64_t)>;

/// Pairs of all magnitudes, with those at which a range ends.
std::pair<Integers, Integers> pairs() {
  const Integers ends{INT32_MIN, INT32_MIN + 1, -81, -2, -1, 0, 1, 2, 31, 32, 33, 81, INT32_MAX - 1, INT32_MAX};
  Integers a;
  Integers b;
  for (const std::int32_t left : ends) {
    for (const std::int32_t right : ends) {
      a.push_back(left);
      b.push_back(right);
    }
  }
  Seeded random(6);
  while (a.size() % 16 != 0 || a.size() < 100000) {
    a.push_back(static_cast<std::int32_t>(random.next()) >> random.next() % 32);
    b.push_back(static_cast<std::int32_t>(random.next()) >> random.next() % 32);
  }
  return {a, b};
}

/// The low 32 bits of what the reference says.
void expect(const codec::Operators::OfIntegers& function, const Reference& reference) {
  static const auto [a, b] = pairs();
  Integers found(a.size());
  for (const auto over : {function.sixteen, function.one}) {
    over(a.data(), b.data(), static_cast<std::int64_t>(a.size()), found.data());
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(found[i], static_cast<std::int32_t>(static_cast<std::uint64_t>(reference(a[i], b[i]))))
          << a[i] << " and " << b[i];
  }
}

std::int64_t quotient(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : a / b; }
/// 0 too, and not a, which a quotient of 0 would leave.
std::int64_t rest(std::int64_t a, std::int64_t b) { return b == 0 ? 0 : a % b; }

TEST(Integers, WrapAround) {
  with_each_isa([](const codec::Operators& operators) {
    expect(operators.minus, [](std::int64_t a, std::int64_t) { return -a; });
    expect(operators.magnitude, [](std::int64_t a, std::int64_t) { return a < 0 ? -a : a; });
  });
}

TEST(Integers, ShiftByCountsModulo32) {
  with_each_isa([](const codec::Operators& operators) {
    expect(operators.shift_left, [](std::int64_t a, std::int64_t b) { return a * (std::int64_t{1} << (b & 31)); });
    expect(operators.shift_right, [](std::int64_t a, std::int64_t b) { return a >> (b & 31); });
  });
}

TEST(Integers, DivideTowardsZeroAndByZeroToZero) {
  with_each_isa([](const codec::Operators& operators) {
    expect(operators.divide, quotient);
    expect(operators.remainder, rest);
    for (const codec::Operators::ByConstant& constant : operators.divide_by) {
      SCOPED_TRACE(constant.by);
      expect(constant.divide, [&](std::int64_t a, std::int64_t) { return quotient(a, constant.by); });
      expect(constant.remainder, [&](std::int64_t a, std::int64_t) { return rest(a, constant.by); });
    }
  });
}

}  // namespace
}  // namespace casync::test
