#include <algorithm>
#include <cmath>
#include <limits>

#include "casync/error.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

TEST(TestTopk, KeepsTheLargestAndLeavesTheRest) {
  const std::int64_t n = 20000;
  const std::vector<float> x = gradient(n, 3);
  std::vector<float> residual(static_cast<std::size_t>(n), 0.0F);
  const Bytes payload = encode_whole("test_topk(ratio=0.01)", {n, 1}, x, &residual);
  const std::vector<float> decoded = decode_whole("test_topk(ratio=0.01)", {n, 1}, payload);
  for (const auto& [begin, end] : {std::pair{0UL, 16384UL}, std::pair{16384UL, 20000UL}}) {
    std::vector<float> magnitudes;
    for (std::size_t i = begin; i < end; ++i) magnitudes.push_back(std::abs(x[i]));
    std::sort(magnitudes.rbegin(), magnitudes.rend());
    const float threshold =
        magnitudes[static_cast<std::size_t>(std::ceil(0.01 * static_cast<double>(end - begin))) - 1];
    for (std::size_t i = begin; i < end; ++i) {
      ASSERT_EQ(decoded[i], std::abs(x[i]) >= threshold ? x[i] : 0.0F);
      ASSERT_EQ(decoded[i] + residual[i], x[i]);
    }
  }
}

TEST(TestTopk, VariesInSizeBelowItsBound) {
  std::vector<float> x(16384, 0.0F);
  x[77] = 1.0F;
  EXPECT_EQ(encode_whole("test_topk(ratio=0.01)", {16384, 1}, x).size(), 12U);
  EXPECT_FALSE(make_codec("test_topk")->info().fixed_size);
}

TEST(TestTopk, CorruptCountsAndIndicesAreNoticed) {
  const Bytes good = encode_whole("test_topk", {16384, 1}, gradient(16384, 3));
  for (const std::size_t at : {0UL, 1UL, 4UL, 7UL}) {
    Bytes bad = good;
    bad[at] = std::byte{0x7f};
    bad[at + 1] = std::byte{0x7f};
    EXPECT_THROW(decode_whole("test_topk", {16384, 1}, bad), CorruptPayload) << at;
  }
}

/// Both rounds for `raws`, with residuals; returns every rank's result.
std::vector<float> two_rounds(Shape shape, const std::vector<Bytes>& raws, std::vector<std::vector<float>>* residuals,
                              bool* nonfinite = nullptr) {
  const auto codec = make_codec("test_tworound");
  const Range whole{0, shape.numel()};
  Bytes previous;
  for (std::uint8_t round = 0; round < 2; ++round) {
    std::vector<Bytes> payloads;
    for (std::size_t rank = 0; rank < raws.size(); ++rank) {
      Call call(codec, shape, whole);
      call.segment.round = round;
      call.segment.previous = previous;
      if (residuals != nullptr) call.residual(&(*residuals)[rank]);
      payloads.push_back(call.raw(raws[rank]).encode().run().payload);
    }
    Call merge(codec, shape, whole);
    merge.segment.round = round;
    merge.segment.previous = previous;
    for (const Bytes& payload : payloads) merge.encoded(payload);
    merge.encode().run();
    if (round == 0) {
      previous = merge.payload;
      continue;
    }
    Call decode(codec, shape, whole);
    decode.segment.round = round;
    decode.segment.previous = previous;
    decode.encoded(merge.payload).deliver().run();
    if (nonfinite != nullptr) *nonfinite = decode.segment.nonfinite;
    return decode.result();
  }
  return {};
}

TEST(TestTwoRound, ConservesMassOverRanks) {
  for (const Shape shape : awkward_shapes()) {
    const auto n = static_cast<std::size_t>(shape.numel());
    std::vector<Bytes> raws;
    std::vector<double> mass(n, 0.0);
    std::vector<std::vector<float>> residuals(3, std::vector<float>(n, 0.0F));
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      const std::vector<float> x = gradient(shape.numel(), 40 + rank);
      for (std::size_t i = 0; i < n; ++i) mass[i] += static_cast<double>(x[i]);
      raws.push_back(elements(x, DType::float32));
    }
    const std::vector<float> out = two_rounds(shape, raws, &residuals);
    std::size_t sent = 0;
    for (std::size_t i = 0; i < n; ++i) {
      double total = 3 * static_cast<double>(out[i]);  // the mean
      for (const auto& residual : residuals) total += static_cast<double>(residual[i]);
      ASSERT_NEAR(total, mass[i], 1e-6 * (1 + std::abs(mass[i])));
      sent += out[i] != 0 ? 1 : 0;
    }
    if (n > 4096) {
      EXPECT_LT(sent, n / 3);
    }
  }
}

TEST(TestTwoRound, NonFiniteUnitsDecodeToNaNAndKeepTheirResidual) {
  std::vector<float> x = gradient(20000, 1);
  x[17000] = std::numeric_limits<float>::infinity();
  const std::vector<Bytes> raws{elements(x, DType::float32), elements(gradient(20000, 2), DType::float32)};
  std::vector<std::vector<float>> residuals{gradient(20000, 3), gradient(20000, 4)};
  const auto before = residuals;
  bool nonfinite = false;
  const std::vector<float> out = two_rounds({20000, 1}, raws, &residuals, &nonfinite);
  EXPECT_TRUE(nonfinite);
  for (std::size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(std::isnan(out[i]), i >= 16384);
    if (i >= 16384) {
      ASSERT_EQ(residuals[0][i], before[0][i]);
      ASSERT_EQ(residuals[1][i], before[1][i]);
    }
  }
}

TEST(TestTwoRound, PreviousOfAWrongLengthIsNoticed) {
  const Bytes previous(12);
  const Bytes raw = elements(gradient(1000, 1), DType::float32);
  Call call(make_codec("test_tworound"), {1000, 1}, {0, 1000});
  call.segment.round = 1;
  call.segment.previous = previous;
  EXPECT_THROW(call.raw(raw).encode().run(), CorruptPayload);
}

TEST(TestLowRank, ARangeWithoutElementsIsEncodedAsNothing) {
  const Bytes raw = elements(gradient(12, 1), DType::float32);
  EXPECT_EQ(Call(make_codec("test_lowrank"), {4, 3}, {0, 0}).raw(raw).encode().run().payload.size(), 0U);
}

}  // namespace
}  // namespace casync::test
