#include <algorithm>
#include <cmath>
#include <cstdint>

#include "casync/error.hpp"
#include "support.hpp"

/// What every one-round codec must do, whatever its algorithm. A new codec adds its spec to the list.
namespace casync::test {
namespace {

class Conformance : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Codec> codec_ = make_codec(GetParam());
  bool wrapped() const { return codec_->info().feedback == Feedback::wrapper; }

  /// A full encode with residual or state of a slice of the gradient.
  Bytes encode(const Bytes& raw, Shape shape, Range range, std::vector<float>* residual, DType dtype = DType::float32,
               State* state = nullptr) {
    Call call(codec_, shape, range, dtype);
    return call.raw(raw).residual(wrapped() ? residual : nullptr).state(state).encode().run().payload;
  }
  /// The state after some steps.
  State used_state(Shape shape) {
    State state(*codec_, shape);
    for (std::uint64_t step = 0; step < 2 && shape.numel() > 0; ++step)
      encode(elements(gradient(shape.numel(), 60 + step), DType::float32), shape, {0, shape.numel()}, nullptr,
             DType::float32, &state);
    return state;
  }
};

TEST_P(Conformance, PartitionsConcatenateToTheWhole) {
  Seeded random(77);
  for (const Shape shape : awkward_shapes()) {
    const std::int64_t n = shape.numel();
    const Bytes raw = elements(gradient(n, random.next()), DType::float32);
    const std::vector<float> residual = gradient(n, random.next());
    const State state = used_state(shape);
    std::vector<float> whole_residual = residual;
    State whole_state = state;
    const Bytes whole = encode(raw, shape, {0, n}, &whole_residual, DType::float32, &whole_state);
    for (int trial = 0; trial < 4; ++trial) {
      Bytes parts;
      std::vector<float> part_residual = residual;
      State part_state = state;
      for (std::int64_t begin = 0; begin < n;) {
        const auto wanted = begin + 1 + static_cast<std::int64_t>(random.next() % static_cast<std::uint64_t>(n));
        std::int64_t end = codec_->cut(shape, std::min(wanted, n));
        if (end <= begin) end = n;
        const Bytes part = encode(raw, shape, {begin, end}, &part_residual, DType::float32, &part_state);
        parts.insert(parts.end(), part.begin(), part.end());
        begin = end;
      }
      ASSERT_EQ(parts, whole) << shape.rows << " x " << shape.cols;
      ASSERT_TRUE(same_bits(part_residual, whole_residual));
      ASSERT_EQ(part_state.values, whole_state.values);
    }
  }
}

TEST_P(Conformance, CutFindsTheLargestBoundary) {
  for (const Shape shape : awkward_shapes()) {
    const std::int64_t n = shape.numel();
    EXPECT_EQ(codec_->cut(shape, n), n);
    EXPECT_EQ(codec_->cut(shape, 0), 0);
    std::int64_t last = 0;
    for (std::int64_t at = 0; at <= n; at += 1 + n / 500) {
      const std::int64_t boundary = codec_->cut(shape, at);
      ASSERT_LE(boundary, at);
      ASSERT_GE(boundary, last);
      ASSERT_EQ(codec_->cut(shape, boundary), boundary);
      last = boundary;
    }
  }
}

TEST_P(Conformance, BytesAndValuesAreEqualAtEveryLevel) {
  std::uint64_t seed = 500;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    for (const Shape shape : awkward_shapes()) {
      const std::int64_t n = shape.numel();
      const Bytes raw = elements(gradient(n, ++seed), dtype);
      const Bytes other = encode(raw, shape, {0, n}, nullptr, dtype);
      const std::vector<float> residual = gradient(n, ++seed);
      std::vector<Bytes> payloads;
      std::vector<Bytes> outs;
      std::vector<std::vector<float>> residuals;
      const State state = used_state(shape);
      std::vector<State> states;
      std::vector<Bytes> merged;
      at_every_isa([&] {
        residuals.push_back(residual);
        states.push_back(state);
        Call call(codec_, shape, {0, n}, dtype);
        call.segment.mid = 1.0F / 3.0F;
        call.segment.post = 3.0F;
        call.encoded(other).raw(raw).encoded(other).residual(wrapped() ? &residuals.back() : nullptr);
        call.state(&states.back());
        call.encode().deliver().run();
        payloads.push_back(call.payload);
        outs.push_back(call.out);
        Call merge(codec_, shape, {0, n}, dtype);
        merged.push_back(merge.encoded(other).raw(raw).encoded(other).deliver().run().out);
        ASSERT_EQ(payloads.back(), payloads.front()) << shape.rows << " x " << shape.cols << " " << name_of(dtype);
        ASSERT_EQ(outs.back(), outs.front());
        ASSERT_EQ(merged.back(), merged.front());
        ASSERT_TRUE(same_bits(residuals.back(), residuals.front()));
        for (std::size_t a = 0; a < state.values.size(); ++a)
          ASSERT_TRUE(same_bits(states.back().values[a], states.front().values[a])) << state.arrays[a].name;
      });
    }
  }
}

TEST_P(Conformance, OwnerDeliversWhatItsPayloadDecodesTo) {
  std::uint64_t seed = 900;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    for (const Shape shape : awkward_shapes()) {
      const std::int64_t n = shape.numel();
      const Bytes raw = elements(gradient(n, ++seed), dtype);
      const Bytes other = encode(raw, shape, {0, n}, nullptr, dtype);
      Call owner(codec_, shape, {0, n}, dtype);
      owner.segment.mid = 0.5F;
      owner.segment.post = 2.0F;
      owner.encoded(other).raw(raw).encode().deliver().run();
      Call receiver(codec_, shape, {0, n}, dtype);
      receiver.segment.post = 2.0F;
      receiver.encoded(owner.payload).deliver().run();
      ASSERT_EQ(receiver.out, owner.out) << shape.rows << " x " << shape.cols << " " << name_of(dtype);
    }
  }
}

TEST_P(Conformance, MergeAddsInSourceOrder) {
  for (const Shape shape : awkward_shapes()) {
    const std::int64_t n = shape.numel();
    std::vector<Bytes> raws;
    std::vector<Bytes> payloads;
    std::vector<std::vector<float>> decoded;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      raws.push_back(elements(gradient(n, 20 + rank), DType::float32));
      payloads.push_back(encode(raws.back(), shape, {0, n}, nullptr));
      Call call(codec_, shape, {0, n});
      decoded.push_back(call.encoded(payloads.back()).deliver().run().result());
    }
    decoded[1] = values(raws[1], DType::float32);
    std::vector<float> sum = decoded[0];
    for (std::size_t rank = 1; rank < 4; ++rank)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += decoded[rank][i];
    Call merge(codec_, shape, {0, n});
    merge.encoded(payloads[0]).raw(raws[1]).encoded(payloads[2]).encoded(payloads[3]).deliver().run();
    ASSERT_TRUE(same_bits(merge.result(), sum)) << shape.rows << " x " << shape.cols;

    // The result may lie where the raw contribution lay.
    Bytes in_place = raws[1];
    Call again(codec_, shape, {0, n});
    again.encoded(payloads[0]).raw(in_place).encoded(payloads[2]).encoded(payloads[3]);
    again.segment.raw_out = in_place.data();
    again.run();
    ASSERT_TRUE(same_bits(values(in_place, DType::float32), sum));
  }
}

TEST_P(Conformance, LargeResultsTakeTheStreamingPathToTheSameBits) {
  // Above the driver's limit of 8 MiB, with and without a last factor, in units that end on cache lines and that do
  // not, at alignments that streaming stores like and do not.
  for (const Shape shape : {Shape{600, 4096}, Shape{8001, 300}}) {
    const std::int64_t n = shape.numel();
    Bytes raw = elements(gradient(n, 31), DType::float32);
    const Bytes payload = encode(raw, shape, {0, n}, nullptr);
    for (const float post : {1.0F, 0.75F}) {
      std::vector<float> expected;
      for (std::int64_t begin = 0; begin < n;) {
        const std::int64_t end = codec_->cut(shape, std::min(begin + 100 * 4096, n));
        Call call(codec_, shape, {begin, end});
        const Bytes bytes = encode(raw, shape, call.segment.range, nullptr);
        call.encoded(bytes).raw(raw);
        call.segment.post = post;
        const std::vector<float> part = call.deliver().run().result();
        expected.insert(expected.end(), part.begin(), part.end());
        begin = end;
      }
      at_every_isa([&] {
        std::vector<float> memory(static_cast<std::size_t>(n) + 48);
        const std::size_t line = 16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64 / sizeof(float);
        for (const std::size_t shift : {line, line + 4, line + 13}) {
          std::fill(memory.begin(), memory.end(), 7.0F);
          Call call(codec_, shape, {0, n});
          call.encoded(payload).raw(raw);
          call.segment.post = post;
          call.segment.raw_out = memory.data() + shift;
          call.run();
          const auto begin = memory.begin() + static_cast<std::ptrdiff_t>(shift);
          ASSERT_TRUE(same_bits({begin, begin + n}, expected));
          ASSERT_EQ(memory[shift - 1], 7.0F);
          ASSERT_EQ(memory[shift + static_cast<std::size_t>(n)], 7.0F);
        }
      });
    }
  }
}

TEST_P(Conformance, ForeignLengthsAreCorruptPayloads) {
  Seeded random(5);
  for (const Shape shape : {Shape{1, 1}, Shape{300, 17}, Shape{3, 5000}}) {
    const std::int64_t n = shape.numel();
    const Bytes raw = elements(gradient(n, 1), DType::float32);
    const Bytes payload = encode(raw, shape, {0, n}, nullptr);
    std::vector<Bytes> bad;
    bad.emplace_back();
    bad.emplace_back(payload.begin(), payload.end() - 1);
    bad.push_back(payload);
    bad.back().push_back(std::byte{0});
    bad.emplace_back(payload.size() * 2);
    for (const Bytes& bytes : bad) {
      Call call(codec_, shape, {0, n});
      EXPECT_THROW(call.encoded(bytes).deliver().run(), CorruptPayload);
      Call merge(codec_, shape, {0, n});
      EXPECT_THROW(merge.raw(raw).encoded(bytes).deliver().run(), CorruptPayload);
    }
    // Bytes of the right length may decode to anything, or be refused; never to a crash.
    for (int trial = 0; trial < 50; ++trial) {
      Bytes noise(payload.size());
      for (std::byte& byte : noise) byte = static_cast<std::byte>(random.next());
      Call call(codec_, shape, {0, n});
      try {
        call.encoded(noise).deliver().run();
      } catch (const CorruptPayload&) {
      }
    }
  }
}

TEST_P(Conformance, PayloadsStayWithinTheBound) {
  for (const Shape shape : awkward_shapes()) {
    const Range whole{0, shape.numel()};
    const Bytes raw = elements(gradient(shape.numel(), 4), DType::float32);
    const std::size_t bound = codec_->bound(shape, DType::float32, whole, 0);
    const std::size_t size = encode(raw, shape, whole, nullptr).size();
    if (codec_->info().fixed_size)
      EXPECT_EQ(size, bound);
    else
      EXPECT_LE(size, bound);
  }
}

TEST_P(Conformance, StateIsDeclaredAsItIsUsed) {
  for (const Shape shape : awkward_shapes()) {
    const std::int64_t n = shape.numel();
    const State state(*codec_, shape);
    ASSERT_EQ(codec_->state(shape), state.arrays);
    for (std::size_t a = 0; a < state.arrays.size(); ++a) {
      const StateArray& array = state.arrays[a];
      EXPECT_FALSE(array.name.empty());
      for (std::size_t b = 0; b < a; ++b) EXPECT_NE(array.name, state.arrays[b].name);
      if (array.per_element) {
        EXPECT_EQ(array.elements, n) << array.name;
      }
      if (array.pending) {
        EXPECT_TRUE(array.per_element && !array.shared && codec_->info().feedback == Feedback::own) << array.name;
      }
    }
    if (n == 0) continue;
    // Encoding and decoding write what they may: the pending array takes what the payload does not, arrays of a whole
    // gradient only if the codec covers it, and a gradient that is not finite changes nothing.
    State before = used_state(shape);
    State after = before;
    const std::vector<float> x = gradient(n, 8);
    const Bytes payload = encode(elements(x, DType::float32), shape, {0, n}, nullptr, DType::float32, &after);
    Call decode(codec_, shape, {0, n});
    const std::vector<float> sent = decode.state(&after).encoded(payload).deliver().run().result();
    for (std::size_t a = 0; a < state.arrays.size(); ++a) {
      const StateArray& array = state.arrays[a];
      if (!array.per_element && !codec_->info().whole) {
        ASSERT_EQ(before.values[a], after.values[a]) << array.name;
      }
      for (std::size_t i = 0; array.pending && i < x.size(); ++i) {
        const float all = before.values[a][i] + x[i];
        ASSERT_NEAR(after.values[a][i] + sent[i], all, 1e-6 * (1 + std::abs(all))) << array.name << ", element " << i;
      }
    }
    const std::vector<float> nothing(x.size(), std::nanf(""));
    State kept = after;
    encode(elements(nothing, DType::float32), shape, {0, n}, nullptr, DType::float32, &kept);
    ASSERT_EQ(kept.values, after.values);
  }
}

TEST_P(Conformance, BrokenCallsAreInternalErrors) {
  const Bytes raw = elements(gradient(100, 4), DType::float32);
  Call nothing(codec_, {100, 1}, {0, 100});
  EXPECT_THROW(nothing.raw(raw).run(), InternalError) << "no output";
  Call small(codec_, {100, 1}, {0, 100});
  small.raw(raw).encode();
  small.segment.payload = small.segment.payload.first(3);
  EXPECT_THROW(small.run(), InternalError) << "no room";
  Call empty(codec_, {100, 1}, {0, 100});
  EXPECT_THROW(empty.deliver().run(), InternalError) << "no sources";
}

INSTANTIATE_TEST_SUITE_P(Codecs, Conformance,
                         testing::Values("none", "fp16", "bf16", "onebit", "terngrad(bits=2)", "terngrad(bits=4)",
                                         "terngrad(bits=8)", "test_topk(ratio=0.05)", "test_state(gather=0)",
                                         "test_state(gather=1)", "onebit(feedback_decay=0.75)"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

}  // namespace
}  // namespace casync::test
