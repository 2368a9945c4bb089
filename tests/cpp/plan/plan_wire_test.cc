#include "plan/plan_wire.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace casync {
namespace {

using Bytes = std::vector<std::byte>;

GradientPlan some_plan() {
  return {"ring",
          "terngrad(bits=4)",
          12,
          3,
          2,
          1,
          {0.5, 20, 0.25},
          -7,
          true,
          "float32 (64, 3)",
          7,
          "compressed 1.5 ms, not 9.0 ms",
          40,
          true,
          1.5e-3,
          9e-3,
          1 << 20,
          1e-9,
          2e-10,
          3e-10,
          4e-10};
}

Signature some_signature() {
  return {.kind = OpKind::broadcast,
          .dtype = DType::bfloat16,
          .op = ReduceOp::product,
          .shape = {64, 147},
          .root = 3,
          .prescale = 0.5F,
          .postscale = -2.0F,
          .dims = "(64, 3, 7, 7)",
          .compression = "auto(onebit)",
          .topology = "two_level",
          .priority = -3,
          .seed = 4000000000U};
}

template <typename T>
Bytes bytes_of(const T& value) {
  Bytes bytes;
  put(bytes, value);
  return bytes;
}

TEST(PlanWire, RoundTripsAPlan) {
  const Bytes bytes = bytes_of(some_plan());
  ByteReader reader(bytes);
  EXPECT_EQ(get_plan(reader), some_plan());
  EXPECT_EQ(reader.left(), 0U);
}

TEST(PlanWire, RoundTripsASignature) {
  const Bytes bytes = bytes_of(some_signature());
  ByteReader reader(bytes);
  EXPECT_EQ(get_signature(reader), some_signature());
  EXPECT_EQ(reader.left(), 0U);
}

TEST(PlanWire, RoundTripsDefaultsAndEmptyText) {
  const Bytes bytes = bytes_of(Signature{});
  ByteReader reader(bytes);
  EXPECT_EQ(get_signature(reader), Signature{});
}

TEST(PlanWire, ATimeThatCannotBeIsRefused) {
  for (const double seconds : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    GradientPlan plan = some_plan();
    plan.measured_decode_s_per_byte = seconds;
    const Bytes bytes = bytes_of(plan);
    ByteReader reader(bytes);
    EXPECT_THROW(get_plan(reader), CorruptPayload) << seconds;
  }
}

TEST(PlanWire, ValuesFollowEachOther) {
  Bytes bytes = bytes_of(some_signature());
  put(bytes, some_plan());
  put(bytes, GradientPlan{});
  ByteReader reader(bytes);
  EXPECT_EQ(get_signature(reader), some_signature());
  EXPECT_EQ(get_plan(reader), some_plan());
  EXPECT_EQ(get_plan(reader), GradientPlan{});
}

TEST(PlanWire, EveryTruncationIsRefused) {
  const Bytes plan = bytes_of(some_plan());
  for (std::size_t length = 0; length < plan.size(); ++length) {
    ByteReader reader(std::span<const std::byte>(plan).first(length));
    EXPECT_THROW(get_plan(reader), CorruptPayload) << length;
  }
  const Bytes signature = bytes_of(some_signature());
  for (std::size_t length = 0; length < signature.size(); ++length) {
    ByteReader reader(std::span<const std::byte>(signature).first(length));
    EXPECT_THROW(get_signature(reader), CorruptPayload) << length;
  }
}

TEST(PlanWire, NumbersWithoutMeaningAreRefused) {
  Bytes plan = bytes_of(some_plan());

  for (const std::uint32_t count : {0U, kPartitionLimit + 1, ~0U}) {
    GradientPlan odd = some_plan();
    odd.partitions = count;
    const Bytes bytes = bytes_of(odd);
    ByteReader partitions(bytes);
    EXPECT_THROW(get_plan(partitions), CorruptPayload) << count;
  }

  const Bytes good = bytes_of(some_signature());
  for (std::size_t field = 0; field < 3; ++field) {  // kind, dtype, op
    Bytes bytes = good;
    bytes[field] = std::byte{200};
    ByteReader reader(bytes);
    EXPECT_THROW(get_signature(reader), CorruptPayload) << field;
  }
}

TEST(PlanWire, ShapesThatOverflowAreRefused) {
  for (const Shape shape : {Shape{-1, 1}, Shape{1, -1}, Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}}) {
    Signature signature = some_signature();
    signature.shape = shape;
    const Bytes bytes = bytes_of(signature);
    ByteReader reader(bytes);
    EXPECT_THROW(get_signature(reader), CorruptPayload);
  }
}

/// A flipped byte may give another valid value; what it must never do is anything but that or CorruptPayload.
TEST(PlanWire, ForeignBytesNeverDoWorse) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = round % 2 == 0 ? bytes_of(some_plan()) : bytes_of(some_signature());
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    ByteReader reader(bytes);
    try {
      round % 2 == 0 ? static_cast<void>(get_plan(reader)) : static_cast<void>(get_signature(reader));
    } catch (const CorruptPayload&) {
    }
  }
}

}  // namespace
}  // namespace casync
