#include <cmath>
#include <limits>

#include "casync/error.hpp"
#include "reference.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

constexpr DType kFloats[]{DType::float32, DType::float16, DType::bfloat16, DType::float64};
constexpr DType kIntegers[]{DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8, DType::uint16};
constexpr ReduceOp kOps[]{ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// Whole numbers that every dtype holds.
Bytes small_numbers(std::int64_t n, DType dtype, std::uint64_t seed) {
  Seeded random(seed);
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& value : out) value = static_cast<float>(random.next() % 5);
  return elements(out, dtype);
}

double combined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::sum) return a + b;
  if (op == ReduceOp::product) return a * b;
  return op == ReduceOp::min ? std::min(a, b) : std::max(a, b);
}

TEST(None, MergesEveryDtypeWithEveryOperation) {
  std::uint64_t seed = 0;
  for (std::size_t d = 0; d < kDTypeSize.size(); ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const ReduceOp op : kOps) {
      for (const std::int64_t n : {0, 1, 7, 255, 4097, 20000}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(op)) + " " + std::to_string(n));
        const Bytes a = small_numbers(n, dtype, ++seed);
        const Bytes b = small_numbers(n, dtype, ++seed);
        const Bytes c = small_numbers(n, dtype, ++seed);
        Call call(make_codec("none"), {n, 1}, {0, n}, dtype);
        call.segment.op = op;
        call.encoded(a).raw(b).encoded(c).deliver().run();
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
          double expected =
              combined(op, combined(op, reference::read(a.data(), i, dtype), reference::read(b.data(), i, dtype)),
                       reference::read(c.data(), i, dtype));
          if (dtype == DType::boolean) expected = expected != 0 ? 1 : 0;
          ASSERT_EQ(reference::read(call.out.data(), i, dtype), expected) << i;
        }
      }
    }
  }
}

TEST(None, SixteenBitFloatsRoundOnce) {
  // 2048 + 1 + 1 is 2050 in float16 only if nothing is rounded between.
  const Bytes big = elements({2048.0F}, DType::float16);
  const Bytes one = elements({1.0F}, DType::float16);
  Call call(make_codec("none"), {1, 1}, {0, 1}, DType::float16);
  call.raw(big).encoded(one).encoded(one).deliver().run();
  EXPECT_EQ(call.result()[0], 2050.0F);
}

TEST(None, Float64StaysDouble) {
  Bytes a(8);
  Bytes b(8);
  reference::write(a.data(), 0, DType::float64, 1.0);
  reference::write(b.data(), 0, DType::float64, 0x1p-40);
  Call call(make_codec("none"), {1, 1}, {0, 1}, DType::float64);
  call.segment.mid = 1.0F / 3.0F;
  call.raw(a).encoded(b).deliver().run();
  EXPECT_EQ(reference::read(call.out.data(), 0, DType::float64), (1.0 + 0x1p-40) / 3.0);
}

TEST(None, MeansOfFloatsAreQuotients) {
  std::vector<float> sums(1000);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<float>(i) * 0.37F - 100.0F;
  sums[7] = std::numeric_limits<float>::infinity();
  const auto numel = static_cast<std::int64_t>(sums.size());
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    const Bytes sum = elements(sums, dtype);
    const std::vector<float> stored = values(sum, dtype);
    for (int ranks = 1; ranks <= 20; ++ranks) {
      std::vector<float> quotients;
      for (const float value : stored) quotients.push_back(value / static_cast<float>(ranks));
      const std::vector<float> expected = values(elements(quotients, dtype), dtype);
      Call call(make_codec("none"), {numel, 1}, {0, numel}, dtype);
      call.segment.mid = 1.0F / static_cast<float>(ranks);
      EXPECT_EQ(call.raw(sum).encode().deliver().run().result(), expected) << ranks << ' ' << name_of(dtype);
      EXPECT_EQ(values(call.payload, dtype), expected);
      Call alone(make_codec("none"), {numel, 1}, {0, numel}, dtype);
      alone.segment.mid = call.segment.mid;
      EXPECT_EQ(alone.encoded(sum).deliver().run().result(), expected);
    }
  }
}

TEST(None, IntegerSumsWrapAndAveragesTruncateTowardZero) {
  for (const DType dtype : kIntegers) {
    for (int ranks = 1; ranks <= 100; ++ranks) {
      Bytes each = elements({dtype == DType::uint8 || dtype == DType::uint16 ? 2.0F : -2.0F, 1.0F}, dtype);
      Call call(make_codec("none"), {2, 1}, {0, 2}, dtype);
      call.segment.mid = 1.0F / static_cast<float>(ranks);
      for (int rank = 0; rank < ranks; ++rank) call.encoded(each);
      call.deliver().run();
      EXPECT_EQ(call.result(), values(each, dtype)) << ranks << " ranks, " << name_of(dtype);
    }
  }
  const Bytes large = elements({120.0F}, DType::int8);
  Call sum(make_codec("none"), {1, 1}, {0, 1}, DType::int8);
  EXPECT_EQ(sum.raw(large).raw(large).deliver().run().result()[0], -16.0F);
  const Bytes most = elements({65535.0F}, DType::uint16);
  Call wrapped(make_codec("none"), {1, 1}, {0, 1}, DType::uint16);
  EXPECT_EQ(wrapped.raw(most).raw(most).deliver().run().result()[0], 65534.0F);
  const Bytes odd = elements({-3.0F, 3.0F}, DType::int32);
  const Bytes zero = elements({0.0F, 0.0F}, DType::int32);
  Call mean(make_codec("none"), {2, 1}, {0, 2}, DType::int32);
  mean.segment.mid = 0.5F;
  EXPECT_EQ(mean.raw(odd).raw(zero).deliver().run().result(), (std::vector<float>{-1, 1}));
}

TEST(None, Int64IsExactBeyondDouble) {
  const std::int64_t huge = (std::int64_t{1} << 62) + 1;
  Bytes bytes(8);
  std::memcpy(bytes.data(), &huge, 8);
  Call call(make_codec("none"), {1, 1}, {0, 1}, DType::int64);
  call.segment.mid = 0.5F;
  const Bytes two = [] {
    const std::int64_t value = 1;
    Bytes out(8);
    std::memcpy(out.data(), &value, 8);
    return out;
  }();
  call.raw(bytes).raw(two).deliver().run();
  std::int64_t result = 0;
  std::memcpy(&result, call.out.data(), 8);
  EXPECT_EQ(result, (huge + 1) / 2);
}

TEST(None, AFactorThatLeavesInt64GivesItsEnd) {
  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t value : {Limits::max(), Limits::min()}) {
    Bytes bytes(8);
    std::memcpy(bytes.data(), &value, 8);
    Call call(make_codec("none"), {1, 1}, {0, 1}, DType::int64);
    call.segment.mid = 2.5F;
    call.raw(bytes).deliver().run();
    std::int64_t result = 0;
    std::memcpy(&result, call.out.data(), 8);
    EXPECT_EQ(result, value);
  }
}

TEST(None, FactorsApplyWhereTheContractSays) {
  for (const DType dtype : kFloats) {
    const Bytes raw = elements({8.0F}, dtype);
    const Bytes payload = elements({4.0F}, dtype);
    Call call(make_codec("none"), {1, 1}, {0, 1}, dtype);
    call.segment.pre = 0.5F;
    call.segment.mid = 0.25F;
    call.segment.post = 16.0F;
    call.raw(raw).encoded(payload).encode().deliver().run();
    EXPECT_EQ(values(call.payload, dtype)[0], 2.0F);
    EXPECT_EQ(call.result()[0], 32.0F);
  }
}

TEST(None, ReportsNonFiniteResults) {
  for (const DType dtype : kFloats) {
    for (const std::size_t where : {0UL, 5UL, 16UL, 99UL}) {
      std::vector<float> x(100, 1.0F);
      x[where] = std::numeric_limits<float>::infinity();
      const Bytes bad = elements(x, dtype);
      const Bytes good = elements(std::vector<float>(100, 1.0F), dtype);
      at_every_isa([&] {
        Call call(make_codec("none"), {100, 1}, {0, 100}, dtype);
        EXPECT_TRUE(call.raw(bad).raw(good).deliver().run().segment.nonfinite);
        Call fine(make_codec("none"), {100, 1}, {0, 100}, dtype);
        EXPECT_FALSE(fine.raw(good).raw(good).deliver().run().segment.nonfinite);
      });
    }
  }
}

TEST(None, MinAndMaxPassNaNOn) {
  const Bytes nan = elements({std::nanf("")}, DType::float32);
  const Bytes one = elements({1.0F}, DType::float32);
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (const bool first : {false, true}) {
      Call call(make_codec("none"), {1, 1}, {0, 1});
      call.segment.op = op;
      call.raw(first ? nan : one).raw(first ? one : nan).deliver().run();
      EXPECT_TRUE(std::isnan(call.result()[0]));
      EXPECT_TRUE(call.segment.nonfinite);
    }
  }
}

}  // namespace
}  // namespace casync::test
