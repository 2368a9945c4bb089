#include <algorithm>
#include <cmath>
#include <limits>

#include "casync/error.hpp"
#include "reference.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

constexpr DType kFloats[]{DType::float32, DType::float16, DType::bfloat16, DType::float64};
constexpr std::int64_t kLengths[]{1, 7, 8, 1023, 1024, 1025, 5000};

std::vector<double> doubles(const Bytes& bytes, DType dtype) {
  std::vector<double> out(bytes.size() / size_of(dtype));
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = reference::read(bytes.data(), i, dtype);
  return out;
}

/// Half a step of the dtype at `value`: what one rounding may cost.
double rounding(DType dtype, double value) {
  const double smallest = dtype == DType::float16 ? 0x1p-25 : 0x1p-130;
  const double relative = dtype == DType::float64    ? 0x1p-53
                          : dtype == DType::float32  ? 0x1p-24
                          : dtype == DType::bfloat16 ? 0x1p-8
                                                     : 0x1p-11;
  return std::max(relative * std::abs(value) * (1 + 1e-6), smallest);
}

void expect_near(const std::vector<double>& got, const std::vector<double>& expected, DType dtype, double scale) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], rounding(dtype, expected[i]) + 1e-12 * scale) << i;
}

double largest(const std::vector<std::vector<double>>& vectors) {
  double most = 0;
  for (const auto& vector : vectors)
    for (const double value : vector) most = std::max(most, std::abs(value));
  return most;
}

/// The Adasum of raw contributions by `none`.
Bytes merge(const std::vector<Bytes>& contributions, DType dtype, float mid = 1.0F) {
  const auto n = static_cast<std::int64_t>(contributions[0].size() / size_of(dtype));
  Call call(make_codec("none"), {n, 1}, {0, n}, dtype);
  call.segment.op = ReduceOp::adasum;
  call.segment.mid = mid;
  for (const Bytes& contribution : contributions) call.raw(contribution);
  call.deliver().run();
  return call.out;
}

std::vector<double> merge_floats(const std::vector<std::vector<float>>& contributions) {
  std::vector<Bytes> bytes;
  for (const auto& contribution : contributions) bytes.push_back(elements(contribution, DType::float32));
  return doubles(merge(bytes, DType::float32), DType::float32);
}

TEST(Adasum, IsTheTreeOfTheDefinition) {
  std::uint64_t seed = 0;
  for (const DType dtype : kFloats) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const std::int64_t n : kLengths) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(ranks) + " ranks, " + std::to_string(n));
        std::vector<Bytes> contributions;
        std::vector<std::vector<double>> exact;
        for (int rank = 0; rank < ranks; ++rank) {
          contributions.push_back(elements(gradient(n, ++seed), dtype));
          exact.push_back(doubles(contributions.back(), dtype));
        }
        std::vector<double> expected = reference::adasum(exact);
        std::vector<Bytes> results;
        at_every_isa([&] {
          results.push_back(merge(contributions, dtype));
          EXPECT_EQ(results.front(), results.back());
          expect_near(doubles(results.back(), dtype), expected, dtype, largest(exact));
        });
      }
    }
  }
}

TEST(Adasum, OrthogonalVectorsAdd) {
  for (const int ranks : {2, 3, 4, 5}) {
    std::vector<std::vector<float>> vectors;
    std::vector<double> sum(100, 0);
    for (int rank = 0; rank < ranks; ++rank) {
      vectors.emplace_back(100, 0.0F);
      for (std::size_t i = static_cast<std::size_t>(rank); i < 100; i += static_cast<std::size_t>(ranks)) {
        vectors.back()[i] = static_cast<float>(i) + 0.1F;
        sum[i] = static_cast<double>(vectors.back()[i]);
      }
    }
    EXPECT_EQ(merge_floats(vectors), sum) << ranks;
  }
}

TEST(Adasum, EqualVectorsAverage) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const std::vector<float> each = gradient(3000, 5);
    const std::vector<double> got =
        merge_floats(std::vector<std::vector<float>>(static_cast<std::size_t>(ranks), each));
    EXPECT_EQ(got, doubles(elements(each, DType::float32), DType::float32)) << ranks;
  }
}

TEST(Adasum, OppositeVectorsCancelAndZerosAddNothing) {
  const std::vector<float> x = gradient(2000, 7);
  std::vector<float> opposite = x;
  for (float& value : opposite) value = -value;
  const std::vector<float> zero(2000, 0.0F);
  const std::vector<double> exact = doubles(elements(x, DType::float32), DType::float32);
  EXPECT_EQ(merge_floats({x, opposite}), std::vector<double>(2000, 0.0));
  EXPECT_EQ(merge_floats({x, zero}), exact);
  EXPECT_EQ(merge_floats({zero, zero, x}), exact);
  EXPECT_EQ(merge_floats({zero, zero}), std::vector<double>(2000, 0.0));
}

TEST(Adasum, ScalesAsItsContributionsDo) {
  std::vector<Bytes> plain;
  std::vector<Bytes> scaled;
  for (std::uint64_t rank = 0; rank < 5; ++rank) {
    std::vector<float> x(4000);
    Seeded random(rank);
    for (float& value : x) value = static_cast<float>(random.normal());
    plain.push_back(elements(x, DType::float32));
    for (float& value : x) value *= 0x1p-60F;  // squares of such values are no float32
    scaled.push_back(elements(x, DType::float32));
  }
  const std::vector<double> one = doubles(merge(plain, DType::float32), DType::float32);
  std::vector<double> other = doubles(merge(scaled, DType::float32), DType::float32);
  for (double& value : other) value *= 0x1p60;
  EXPECT_EQ(one, other);
}

TEST(Adasum, FactorsMultiplyTheResult) {
  for (const DType dtype : kFloats) {
    const Bytes x = elements({4.0F, 0.0F}, dtype);
    const Bytes y = elements({0.0F, 8.0F}, dtype);
    EXPECT_EQ(doubles(merge({x, y}, dtype, 0.25F), dtype), (std::vector<double>{1, 2}));
  }
}

TEST(Adasum, IsDeliveredWhereAContributionLies) {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const Bytes x = elements(gradient(3000, 1), dtype);
    Bytes y = elements(gradient(3000, 2), dtype);
    const Bytes expected = merge({x, y}, dtype);
    const Source sources[] = {{x.data(), x.size(), true}, {y.data(), y.size(), true}};
    Segment segment;
    segment.shape = {3000, 1};
    segment.range = {0, 3000};
    segment.dtype = dtype;
    segment.op = ReduceOp::adasum;
    segment.sources = sources;
    segment.raw_out = y.data();
    make_codec("none")->run(std::span(&segment, 1));
    EXPECT_EQ(y, expected);
  }
}

TEST(Adasum, OneNaNIsEverywhere) {
  for (const DType dtype : kFloats) {
    std::vector<float> bad(2000, 1.0F);
    bad[1999] = std::numeric_limits<float>::quiet_NaN();
    const Bytes nan = elements(bad, dtype);
    const Bytes good = elements(std::vector<float>(2000, 2.0F), dtype);
    Call call(make_codec("none"), {2000, 1}, {0, 2000}, dtype);
    call.segment.op = ReduceOp::adasum;
    call.raw(good).raw(nan).raw(good).deliver().run();
    EXPECT_TRUE(call.segment.nonfinite);
    for (const double value : doubles(call.out, dtype)) ASSERT_TRUE(std::isnan(value));
  }
}

TEST(Adasum, GoesWithCasts) {
  const std::int64_t n = 2500;
  for (const auto& [spec, wire] : {std::pair{"fp16", DType::float16}, std::pair{"bf16", DType::bfloat16}}) {
    for (int ranks = 2; ranks <= 5; ++ranks) {
      Call call(make_codec(spec), {n, 1}, {0, n});
      call.segment.op = ReduceOp::adasum;
      std::vector<std::vector<double>> exact;
      std::vector<Bytes> given;
      given.reserve(static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<float> x = gradient(n, static_cast<std::uint64_t>(rank));
        const float most = std::abs(*std::ranges::max_element(x));
        for (float& value : x) value /= most;
        const bool own = rank == 1;
        given.push_back(own ? elements(x, DType::float32) : encode_whole(spec, {n, 1}, x));
        own ? call.raw(given.back()) : call.encoded(given.back());
        exact.push_back(doubles(given.back(), own ? DType::float32 : wire));
      }
      call.encode().deliver().run();
      EXPECT_EQ(values(call.payload, wire), call.result()) << "the owner has what it sends";
      expect_near(doubles(call.payload, wire), reference::adasum(exact), wire, largest(exact));
    }
  }
}

TEST(Adasum, IsRefusedByWhatIsNoCast) {
  const Bytes x = elements(gradient(4096, 1), DType::float32);
  Call onebit(make_codec("onebit"), {4096, 1}, {0, 4096});
  onebit.segment.op = ReduceOp::adasum;
  EXPECT_THROW(onebit.raw(x).deliver().run(), InternalError);
  Call integers(make_codec("none"), {1024, 1}, {0, 1024}, DType::int32);
  integers.segment.op = ReduceOp::adasum;
  const Bytes y = elements(gradient(1024, 1), DType::int32);
  EXPECT_THROW(integers.raw(y).deliver().run(), InternalError);
}

}  // namespace
}  // namespace casync::test
