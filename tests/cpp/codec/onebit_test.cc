#include <cmath>
#include <limits>

#include "casync/error.hpp"
#include "codec/reference.hpp"
#include "codec/support.hpp"

namespace casync::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Encodes with the definition: per group the two means in double, bits from a byte boundary.
struct ReferenceGroup {
  double positive = 0;
  double negative = 0;
  std::vector<bool> bits;
};

ReferenceGroup reference_group(const std::vector<float>& x, std::int64_t begin, std::int64_t end) {
  ReferenceGroup group;
  std::int64_t positives = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const float value = x[static_cast<std::size_t>(i)];
    group.bits.push_back(value >= 0);
    (value >= 0 ? group.positive : group.negative) += static_cast<double>(value);
    positives += value >= 0 ? 1 : 0;
  }
  if (positives > 0) group.positive /= static_cast<double>(positives);
  if (positives < end - begin) group.negative /= static_cast<double>(end - begin - positives);
  return group;
}

float read_float(const Bytes& bytes, std::size_t at) {
  float value = 0;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

TEST(Onebit, FollowsTheDefinition) {
  std::uint64_t seed = 1;
  for (const Shape shape : awkward_shapes()) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
    const std::vector<float> x = gradient(shape.numel(), ++seed);
    const Bytes payload = encode_whole("onebit", shape, x);
    std::size_t at = 0;
    for (const auto& [begin, end] : reference::onebit_groups(shape)) {
      const ReferenceGroup group = reference_group(x, begin, end);
      ASSERT_LE(at + 8, payload.size());
      EXPECT_NEAR(read_float(payload, at), group.positive, 1e-6 * std::abs(group.positive));
      EXPECT_NEAR(read_float(payload, at + 4), group.negative, 1e-6 * std::abs(group.negative));
      at += 8;
      for (std::size_t i = 0; i < group.bits.size(); ++i)
        ASSERT_EQ((static_cast<unsigned>(payload[at + i / 8]) >> (i % 8) & 1U) != 0, group.bits[i])
            << begin << " + " << i;
      const std::size_t bytes = (group.bits.size() + 7) / 8;
      if (group.bits.size() % 8 != 0) {
        EXPECT_EQ(static_cast<unsigned>(payload[at + bytes - 1]) >> (group.bits.size() % 8), 0U)
            << "padding bits are zero";
      }
      at += bytes;
    }
    EXPECT_EQ(at, payload.size());
  }
}

TEST(Onebit, DecodesToTheMeanOfEachSign) {
  const std::vector<float> x{1.0F, -2.0F, 3.0F, -0.0F, 0.0F, -4.0F};
  const Shape shape{6, 1};
  const auto decoded = decode_whole("onebit", shape, encode_whole("onebit", shape, x));
  EXPECT_EQ(decoded, (std::vector<float>{1, -3, 1, 1, 1, -3}));
}

TEST(Onebit, AnEmptySideDecodesToZeroAndIsNeverUsed) {
  const Shape shape{1, 300};
  const Bytes payload = encode_whole("onebit", shape, std::vector<float>(300, 2.5F));
  EXPECT_EQ(read_float(payload, 0), 2.5F);
  EXPECT_EQ(read_float(payload, 4), 0.0F);
  EXPECT_EQ(decode_whole("onebit", shape, payload), std::vector<float>(300, 2.5F));
}

TEST(Onebit, WorkerResidualIsWhatTheBytesLost) {
  std::uint64_t seed = 100;
  for (const Shape shape : awkward_shapes()) {
    const std::vector<float> g = gradient(shape.numel(), ++seed);
    std::vector<float> e = gradient(shape.numel(), ++seed);
    std::vector<float> x = g;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += e[i];
    const Bytes payload = encode_whole("onebit", shape, g, &e);
    EXPECT_EQ(payload, encode_whole("onebit", shape, x)) << "feedback only adds the residual";
    const std::vector<float> decoded = decode_whole("onebit", shape, payload);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(e[i], x[i] - decoded[i]) << i;
  }
}

TEST(Onebit, NonFiniteGroupsDecodeToNaNAndKeepTheirResidual) {
  const Shape shape{4, 1000};
  for (const float poison : {std::nanf(""), kInfinity, -kInfinity}) {
    for (const std::size_t where : {1000UL, 1499UL, 1999UL}) {
      at_every_isa([&] {
        std::vector<float> g = gradient(shape.numel(), 7);
        g[where] = poison;
        std::vector<float> e = gradient(shape.numel(), 8);
        const std::vector<float> before = e;
        Call call(make_codec("onebit"), shape, {0, shape.numel()});
        const Bytes raw = elements(g, DType::float32);
        call.raw(raw).residual(&e).encode().deliver().run();
        EXPECT_TRUE(call.segment.nonfinite);
        const std::vector<float> out = call.result();
        for (std::size_t i = 0; i < out.size(); ++i) {
          const bool poisoned = i / 1000 == 1;
          ASSERT_EQ(std::isnan(out[i]), poisoned) << i;
          ASSERT_EQ(e[i] == before[i], poisoned) << i;
        }
      });
    }
  }
}

TEST(Onebit, ASumThatOverflowsIsNonFiniteToo) {
  const Shape shape{1, 256};
  Call call(make_codec("onebit"), shape, {0, 256});
  const Bytes raw = elements(std::vector<float>(256, 3e38F), DType::float32);
  call.raw(raw).encode().run();
  EXPECT_TRUE(call.segment.nonfinite);
}

TEST(Onebit, OwnerConservesMass) {
  // Sum of the inputs + residuals before = N * output + residuals after: encode on N workers, then merge+encode at the
  // owner.
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Shape shape = awkward_shapes()[static_cast<std::size_t>(seed) % awkward_shapes().size()];
    const auto n = static_cast<std::size_t>(shape.numel());
    constexpr int kRanks = 4;
    std::vector<double> mass(n, 0.0);
    std::vector<Bytes> raws;
    std::vector<Bytes> payloads;
    std::vector<std::vector<float>> residuals;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<float> g = gradient(shape.numel(), 1000 + 10 * seed + static_cast<std::uint64_t>(rank));
      raws.push_back(elements(g, DType::float32));
      residuals.emplace_back(n, 0.0F);
      for (std::size_t i = 0; i < n; ++i) mass[i] += static_cast<double>(g[i]);
      payloads.push_back(rank == 2 ? Bytes{} : encode_whole("onebit", shape, g, &residuals.back()));
    }
    Call owner(make_codec("onebit"), shape, {0, shape.numel()});
    owner.encoded(payloads[0]).encoded(payloads[1]).raw(raws[2]).encoded(payloads[3]);
    owner.segment.mid = 0.25F;
    owner.segment.role = Role::owner;
    owner.residual(&residuals[2]).encode().deliver().run();
    const std::vector<float> out = owner.result();
    EXPECT_TRUE(same_bits(out, decode_whole("onebit", shape, owner.payload)));
    for (std::size_t i = 0; i < n; ++i) {
      double left = kRanks * static_cast<double>(out[i]);
      for (const auto& residual : residuals) left += static_cast<double>(residual[i]);
      ASSERT_NEAR(left, mass[i], 1e-5 * (1.0 + std::abs(mass[i]))) << i;
    }
  }
}

}  // namespace
}  // namespace casync::test
