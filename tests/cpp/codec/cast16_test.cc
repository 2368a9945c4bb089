#include <cmath>
#include <limits>

#include "reference.hpp"
#include "support.hpp"

namespace casync::test {
namespace {

struct Wire {
  const char* spec;
  DType dtype;
  int mantissa;
  int exponent;
};
constexpr Wire kWires[]{{"fp16", DType::float16, 10, 5}, {"bf16", DType::bfloat16, 7, 8}};

/// Every exponent of float32 with mantissas that lie on, next to and between the roundings.
std::vector<float> hard_values() {
  std::vector<float> out;
  Seeded random(3);
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa :
         {0U, 1U, 0x1000U, 0x0fffU, 0x1001U, 0x3000U, 0x8000U, 0x7fffU, 0x8001U, 0x18000U, 0x7fffffU, 0x7ff000U,
          static_cast<std::uint32_t>(random.next() & 0x7fffffU)}) {
      for (const std::uint32_t sign : {0U, 0x80000000U}) {
        const std::uint32_t bits = sign | exponent << 23 | mantissa;
        float value = 0;
        std::memcpy(&value, &bits, 4);
        out.push_back(value);
      }
    }
  }
  return out;
}

TEST(Cast16, RoundsToNearestEven) {
  const std::vector<float> x = hard_values();
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Wire& wire : kWires) {
    at_every_isa([&] {
      const Bytes payload = encode_whole(wire.spec, {n, 1}, x);
      const std::vector<float> decoded = decode_whole(wire.spec, {n, 1}, payload);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = reference::round_to(static_cast<double>(x[i]), wire.mantissa, wire.exponent);
        ASSERT_EQ(static_cast<double>(decoded[i]), expected) << wire.spec << " of " << x[i];
        ASSERT_EQ(std::signbit(decoded[i]), std::signbit(x[i]));
        ASSERT_EQ(reference::read(payload.data(), i, wire.dtype), expected) << wire.spec << " of " << x[i];
      }
    });
  }
}

TEST(Cast16, EveryPatternDecodesAndReturns) {
  Bytes payload(65536 * 2);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    std::memcpy(payload.data() + 2 * bits, &narrow, 2);
  }
  for (const Wire& wire : kWires) {
    std::vector<std::vector<float>> decoded;
    at_every_isa([&] {
      decoded.push_back(decode_whole(wire.spec, {65536, 1}, payload));
      EXPECT_TRUE(same_bits(decoded.front(), decoded.back()));
      const Bytes again = encode_whole(wire.spec, {65536, 1}, decoded.back());
      for (std::size_t i = 0; i < 65536; ++i) {
        const double expected = reference::read(payload.data(), i, wire.dtype);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(decoded.back()[i]));
        } else {
          ASSERT_EQ(static_cast<double>(decoded.back()[i]), expected);
          ASSERT_EQ(std::memcmp(&again[2 * i], &payload[2 * i], 2), 0) << i;
        }
      }
    });
  }
}

TEST(Cast16, NaNsHaveTheSameBitsAtEveryLevel) {
  std::vector<float> x;
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0xffc12345U, 0xff800001U, 0x7fffffffU}) {
    float value = 0;
    std::memcpy(&value, &bits, 4);
    x.push_back(value);
  }
  for (const Wire& wire : kWires) {
    std::vector<Bytes> payloads;
    at_every_isa([&] {
      payloads.push_back(encode_whole(wire.spec, {5, 1}, x));
      EXPECT_EQ(payloads.front(), payloads.back()) << wire.spec;
      for (const float value : decode_whole(wire.spec, {5, 1}, payloads.back())) EXPECT_TRUE(std::isnan(value));
    });
  }
}

TEST(Cast16, MergesPayloadsInFloat32AndRoundsOnce) {
  for (const Wire& wire : kWires) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      const std::int64_t n = 4099;
      std::vector<Bytes> payloads;
      std::vector<float> sum(static_cast<std::size_t>(n), 0.0F);
      for (std::uint64_t rank = 0; rank < 5; ++rank) {
        payloads.push_back(encode_whole(wire.spec, {n, 1}, gradient(n, 10 * seed)));
        const std::vector<float> one = values(payloads.back(), wire.dtype);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = rank == 0 ? one[i] : sum[i] + one[i];
      }
      Call merge(make_codec(wire.spec), {n, 1}, {0, n});
      for (const Bytes& payload : payloads) merge.encoded(payload);
      merge.encode().run();
      const std::vector<float> merged = values(merge.payload, wire.dtype);
      for (std::size_t i = 0; i < sum.size(); ++i)
        ASSERT_EQ(static_cast<double>(merged[i]),
                  reference::round_to(static_cast<double>(sum[i]), wire.mantissa, wire.exponent));
    }
  }
}

TEST(Cast16, OverflowIsReported) {
  const std::vector<float> x{1.0F, 65520.0F, 2.0F};
  const Bytes raw = elements(x, DType::float32);
  at_every_isa([&] {
    Call call(make_codec("fp16"), {3, 1}, {0, 3});
    EXPECT_TRUE(call.raw(raw).encode().run().segment.nonfinite);
    Call wide(make_codec("bf16"), {3, 1}, {0, 3});
    EXPECT_FALSE(wide.raw(raw).encode().run().segment.nonfinite);
  });
}

TEST(Cast16, PrescaledMeansCannotOverflow) {
  EXPECT_TRUE(make_codec("fp16")->info().prescaled);
  EXPECT_TRUE(make_codec("bf16")->info().prescaled);
  const Bytes raw = elements(std::vector<float>(100, 60000.0F), DType::float32);
  Call worker(make_codec("fp16"), {100, 1}, {0, 100});
  worker.segment.pre = 0.25F;
  worker.raw(raw).encode().run();
  Call merge(make_codec("fp16"), {100, 1}, {0, 100});
  merge.encoded(worker.payload).encoded(worker.payload).encoded(worker.payload).encoded(worker.payload).encode().run();
  EXPECT_FALSE(merge.segment.nonfinite);
  EXPECT_EQ(values(merge.payload, DType::float16), std::vector<float>(100, 60000.0F));
}

}  // namespace
}  // namespace casync::test
