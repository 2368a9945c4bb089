#include <algorithm>
#include <cmath>
#include <limits>

#include "reference.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

constexpr int kBits[]{2, 4, 8};

std::string spec_of(int bits) { return "terngrad(bits=" + std::to_string(bits) + ")"; }

float read_float(const Bytes& bytes, std::size_t at) {
  float value = 0;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

TEST(Terngrad, FollowsTheDefinition) {
  std::uint64_t seed = 50;
  for (const int bits : kBits) {
    const double levels = (1 << bits) - 1;
    for (const Shape shape : awkward_shapes()) {
      SCOPED_TRACE(spec_of(bits) + " " + std::to_string(shape.rows) + " x " + std::to_string(shape.cols));
      const std::vector<float> x = gradient(shape.numel(), ++seed);
      const Bytes raw = elements(x, DType::float32);
      Call call(make_codec(spec_of(bits)), shape, {0, shape.numel()});
      call.segment.sequence = 3;
      call.segment.rank = 5;
      call.raw(raw).encode().run();
      std::size_t at = 0;
      for (std::size_t begin = 0; begin < x.size(); begin += 4096) {
        const std::size_t end = std::min(begin + 4096, x.size());
        const auto [low, high] = std::minmax_element(x.begin() + static_cast<std::ptrdiff_t>(begin),
                                                     x.begin() + static_cast<std::ptrdiff_t>(end));
        const float minimum = read_float(call.payload, at);
        const float gap = read_float(call.payload, at + 4);
        EXPECT_EQ(minimum, *low);
        EXPECT_NEAR(gap, static_cast<double>(*high - *low) / levels, 1e-6 * static_cast<double>(*high - *low));
        for (std::size_t i = begin; i < end; ++i) {
          const std::size_t bit = (i - begin) * static_cast<std::size_t>(bits);
          const unsigned code =
              static_cast<unsigned>(call.payload[at + 8 + bit / 8]) >> (bit % 8) & static_cast<unsigned>(levels);
          if (gap == 0) {
            ASSERT_EQ(code, 0U);
            continue;
          }
          const double z = (static_cast<double>(x[i]) - static_cast<double>(minimum)) / static_cast<double>(gap);
          const double u =
              (reference::draw(call.segment.name_hash, 3, 0, 5U << 1, static_cast<std::int64_t>(i)) + 0.5) / 65536;
          const double exact = std::min(std::floor(z + u), levels);
          // float32's z may fall on the other side of an integer, by its own rounding or that to 16 fraction bits.
          const bool near = std::abs(z + u - std::round(z + u)) < 1.0 / 65536 + 1e-6 * levels;
          ASSERT_LE(std::abs(code - exact), near ? 1 : 0) << i << " z " << z << " u " << u;
        }
        at += 8 + ((end - begin) * static_cast<std::size_t>(bits) + 7) / 8;
      }
      EXPECT_EQ(at, call.payload.size());
    }
  }
}

TEST(Terngrad, DecodesToMinimumPlusGapTimesCode) {
  Seeded random(9);
  for (const int bits : kBits) {
    for (const std::int64_t n : {1, 15, 16, 17, 31, 4095, 4096, 4100}) {
      const auto codec = make_codec(spec_of(bits));
      Bytes payload(codec->bound({n, 1}, DType::float32, {0, n}, 0));
      for (std::byte& byte : payload) byte = static_cast<std::byte>(random.next());
      for (std::size_t at = 0; at < payload.size(); at += 8 + static_cast<std::size_t>(4096 * bits / 8)) {
        const float header[2]{static_cast<float>(random.normal()), static_cast<float>(random.uniform())};
        std::memcpy(payload.data() + at, header, 8);
      }
      at_every_isa([&] {
        const std::vector<float> decoded = decode_whole(spec_of(bits), {n, 1}, payload);
        for (std::size_t i = 0; i < decoded.size(); ++i) {
          const std::size_t at = i / 4096 * (8 + static_cast<std::size_t>(4096 * bits / 8));
          const std::size_t bit = i % 4096 * static_cast<std::size_t>(bits);
          const unsigned code = static_cast<unsigned>(payload[at + 8 + bit / 8]) >> (bit % 8) & ((1U << bits) - 1U);
          const float product = read_float(payload, at + 4) * static_cast<float>(code);
          ASSERT_EQ(decoded[i], read_float(payload, at) + product) << i;
        }
      });
    }
  }
}

TEST(Terngrad, MeanOfManyDrawsIsTheValue) {
  for (const int bits : kBits) {
    const std::int64_t n = 64;
    const std::vector<float> x = gradient(n, 5);
    const Bytes raw = elements(x, DType::float32);
    const double gap =
        static_cast<double>(*std::max_element(x.begin(), x.end()) - *std::min_element(x.begin(), x.end())) /
        ((1 << bits) - 1);
    std::vector<double> mean(static_cast<std::size_t>(n), 0.0);
    constexpr int kDraws = 4000;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
      Call call(make_codec(spec_of(bits)), {n, 1}, {0, n});
      call.segment.sequence = draw;
      call.raw(raw).encode().deliver().run();
      const std::vector<float> out = call.result();
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += static_cast<double>(out[i]) / kDraws;
    }
    // Bernoulli rounding has a deviation of at most gap / 2 a draw: five of the mean's.
    for (std::size_t i = 0; i < mean.size(); ++i)
      EXPECT_NEAR(mean[i], static_cast<double>(x[i]), 2.5 * gap / std::sqrt(kDraws)) << bits << " bits, " << i;
  }
}

TEST(Terngrad, RanksRolesAndStepsDrawDifferently) {
  const std::int64_t n = 4096;
  const Bytes raw = elements(gradient(n, 6), DType::float32);
  const auto payload = [&](std::uint16_t rank, Role role, std::uint32_t sequence, std::uint64_t name) {
    Call call(make_codec("terngrad"), {n, 1}, {0, n});
    call.segment.rank = rank;
    call.segment.role = role;
    call.segment.sequence = sequence;
    call.segment.name_hash = name;
    return call.raw(raw).encode().run().payload;
  };
  const Bytes first = payload(1, Role::worker, 0, 7);
  EXPECT_EQ(first, payload(1, Role::worker, 0, 7));
  EXPECT_NE(first, payload(1, Role::owner, 0, 7));
  EXPECT_NE(first, payload(2, Role::worker, 0, 7));
  EXPECT_NE(first, payload(1, Role::worker, 1, 7));
  EXPECT_NE(first, payload(1, Role::worker, 0, 8));
  EXPECT_NE(first, payload(1, Role::worker, 0, 7ULL << 32));
}

TEST(Terngrad, DrawsAreUniform) {
  double mean = 0;
  std::vector<int> histogram(16, 0);
  constexpr std::int64_t kDraws = 1 << 16;
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const std::uint32_t r = reference::draw(99, 1, 0, 2, i);
    mean += r / static_cast<double>(kDraws);
    ++histogram[r >> 12];
  }
  EXPECT_NEAR(mean, 32767.5, 5 * 18918.6 / 256);
  for (const int count : histogram) EXPECT_NEAR(count, 4096, 5 * 62);
}

TEST(Terngrad, ZeroRangeIsExact) {
  for (const float value : {0.0F, -3.25F, 1e-40F, 3e38F})
    for (const int bits : kBits) {
      const std::vector<float> x(5000, value);
      EXPECT_EQ(decode_whole(spec_of(bits), {5000, 1}, encode_whole(spec_of(bits), {5000, 1}, x)), x);
    }
}

TEST(Terngrad, ExtremesAndTinyRangesStayWithinALevel) {
  for (const int bits : kBits) {
    for (const float scale : {1e-44F, 1e-40F, 1e-38F, 1e-30F, 1.0F, 1e30F, 1e38F}) {
      std::vector<float> x = gradient(4096, 12);
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::abs(value));
      for (float& value : x) value = value / largest * scale;
      const std::vector<float> decoded =
          decode_whole(spec_of(bits), {4096, 1}, encode_whole(spec_of(bits), {4096, 1}, x));
      const double gap = 2.0 * static_cast<double>(scale) / ((1 << bits) - 1);
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_NEAR(static_cast<double>(decoded[i]), static_cast<double>(x[i]), 1.0001 * gap + (1 << bits) * 1.5e-45)
            << scale;
    }
  }
}

TEST(Terngrad, NonFiniteUnitsDecodeToNaN) {
  for (const float poison :
       {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {4096UL, 5000UL, 8191UL, 8192UL, 8200UL}) {
      std::vector<float> x = gradient(8201, 13);
      x[where] = poison;
      const Bytes raw = elements(x, DType::float32);
      at_every_isa([&] {
        Call call(make_codec("terngrad"), {8201, 1}, {0, 8201});
        call.raw(raw).encode().deliver().run();
        EXPECT_TRUE(call.segment.nonfinite);
        const std::vector<float> out = call.result();
        for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i / 4096 == where / 4096) << i;
      });
    }
  }
}

}  // namespace
}  // namespace casync::test
