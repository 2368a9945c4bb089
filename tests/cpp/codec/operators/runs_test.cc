#include <algorithm>

#include "each_isa.hpp"

namespace casync::test {
namespace {

using Counts = std::vector<std::int32_t>;

std::vector<std::uint8_t> mixed(std::int64_t n, double share, std::uint64_t seed) {
  Seeded random(seed);
  std::vector<std::uint8_t> out;
  while (static_cast<std::int64_t>(out.size()) < n) {
    const auto length = static_cast<std::size_t>(random.uniform() * random.uniform() * 60) + 1;
    const bool run = random.uniform() < share;
    for (std::size_t i = 0; i < length; ++i)
      out.push_back(run ? 121 : static_cast<std::uint8_t>(random.uniform() < share / 3 ? 121 : random.next()));
  }
  out.resize(static_cast<std::size_t>(n));
  return out;
}

TEST(Runs, AreTheLongestThatMayBe) {
  for (const std::int64_t n : kLengths) {
    for (const double share : {0.0, 0.1, 0.5, 0.9, 1.0}) {
      const std::vector<std::uint8_t> values = mixed(n, share, static_cast<std::uint64_t>(n));
      for (const std::int64_t longest : {1, 2, 14, 16, 17, 200}) {
        std::vector<std::uint8_t> heads;
        Counts lengths;
        for (const std::uint8_t value : values) {
          if (!heads.empty() && value == 121 && heads.back() == 121 && lengths.back() < longest) {
            ++lengths.back();
          } else {
            heads.push_back(value);
            lengths.push_back(1);
          }
        }
        with_each_isa([&](const codec::Operators& operators) {
          std::vector<std::uint8_t> found_heads(values.size() + 16);
          Counts found(values.size() + 16);
          std::int64_t runs = operators.runlength(values.data(), n, 121, longest, found_heads.data(), found.data());
          ASSERT_EQ(runs, static_cast<std::int64_t>(heads.size()));
          found_heads.resize(heads.size());
          found.resize(heads.size());
          ASSERT_EQ(found_heads, heads);
          ASSERT_EQ(found, lengths);

          std::vector<std::uint8_t> narrow(values.size() + 16);
          found_heads.resize(values.size() + 16);
          runs = operators.runlength_bytes(values.data(), n, 121, longest, found_heads.data(), narrow.data());
          ASSERT_EQ(runs, static_cast<std::int64_t>(heads.size()));
          narrow.resize(heads.size());
          ASSERT_TRUE(std::equal(narrow.begin(), narrow.end(), lengths.begin()));

          std::vector<std::uint8_t> back(values.size());
          ASSERT_TRUE(operators.repeat(heads.data(), lengths.data(), runs, n, back.data()));
          ASSERT_EQ(back, values);

          for (const int other : {0, 0x55}) {
            std::uint8_t alone[256];
            std::uint8_t run[256];
            for (int byte = 0; byte < 256; ++byte) {
              alone[byte] = static_cast<std::uint8_t>(byte ^ other);
              run[byte] = static_cast<std::uint8_t>(byte + 3);
            }
            std::vector<std::uint8_t> codes(values.size() + 16);
            runs = operators.code_runs(values.data(), n, 121, longest, alone, run, codes.data());
            ASSERT_EQ(runs, static_cast<std::int64_t>(heads.size()));
            for (std::size_t i = 0; i < heads.size(); ++i)
              ASSERT_EQ(codes[i], heads[i] == 121 ? run[lengths[i]] : alone[heads[i]]);
          }
        });
      }
    }
  }
}

TEST(Runs, RepeatWritesWhatTheCountsSay) {
  for (const std::int64_t m : {0, 1, 16, 1000}) {
    Seeded random(static_cast<std::uint64_t>(m));
    std::vector<std::uint8_t> counts(static_cast<std::size_t>(m));
    Counts expected;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] = static_cast<std::uint8_t>(i % 5 == 0 ? random.next() : random.next() % 4);
      expected.insert(expected.end(), counts[i], static_cast<std::int32_t>(i));
    }
    with_each_isa([&](const codec::Operators& operators) {
      Counts found(expected.size());
      ASSERT_TRUE(operators.repeat_range(counts.data(), m, static_cast<std::int64_t>(found.size()), found.data()));
      ASSERT_EQ(found, expected);
    });
  }
}

void expect_what_bytes_say(const std::uint8_t* value_of, const std::int32_t* count_of) {
  for (const std::int64_t m : {0, 1, 2, 16, 1000}) {
    const std::vector<std::uint8_t> codes = mixed(m, 0.9, static_cast<std::uint64_t>(m));
    std::vector<std::uint8_t> expected;
    for (const std::uint8_t code : codes)
      expected.insert(expected.end(), static_cast<std::size_t>(count_of[code]), value_of[code]);
    const auto n = static_cast<std::int64_t>(expected.size());
    with_each_isa([&](const codec::Operators& operators) {
      std::vector<std::uint8_t> found(expected.size() + 1);
      ASSERT_TRUE(operators.repeat_codes(codes.data(), value_of, count_of, m, n, found.data()));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin()));
      EXPECT_EQ(found.back(), 0);
      EXPECT_FALSE(operators.repeat_codes(codes.data(), value_of, count_of, m, n + 1, found.data()));
      if (n > 0) {
        EXPECT_FALSE(operators.repeat_codes(codes.data(), value_of, count_of, m, n - 1, found.data()));
      }
    });
  }
}

TEST(Runs, BytesSayWhatIsRepeatedAndHowOften) {
  std::uint8_t value_of[256];
  std::int32_t count_of[256];
  for (int byte = 0; byte < 256; ++byte) {
    value_of[byte] = static_cast<std::uint8_t>(byte * 7);
    count_of[byte] = byte % 9 == 0 ? byte : byte % 3;
  }
  expect_what_bytes_say(value_of, count_of);
  for (int byte = 0; byte < 256; ++byte)
    if (count_of[byte] > 1) value_of[byte] = 121;  // no other value is repeated
  expect_what_bytes_say(value_of, count_of);
}

TEST(Runs, BytesOfCountsThatNobodyWroteAreRefused) {
  const std::uint8_t value_of[256]{};
  const std::uint8_t codes[]{0, 1, 2};
  for (const std::int32_t hostile : {-1, INT32_MIN, INT32_MAX, 11}) {
    std::int32_t count_of[256]{1, hostile, 9};
    with_each_isa([&](const codec::Operators& operators) {
      std::vector<std::uint8_t> out(11, 7);
      EXPECT_FALSE(operators.repeat_codes(codes, value_of, count_of, 3, 10, out.data()));
      EXPECT_EQ(out.back(), 7);
    });
  }
}

TEST(Runs, RepeatWritesNothingIfTheCountsAreNotThoseOfTheArray) {
  const std::vector<std::uint8_t> values{1, 2, 3};
  const Counts hostile[]{{1, 2, 6}, {1, 2, 8}, {-1, 4, 7}, {0, 0, 0}, {INT32_MAX, INT32_MAX, 12}, {INT32_MIN, 10, 0}};
  with_each_isa([&](const codec::Operators& operators) {
    for (const Counts& counts : hostile) {
      std::vector<std::uint8_t> out(10, 7);
      EXPECT_FALSE(operators.repeat(values.data(), counts.data(), 3, 10, out.data()));
      EXPECT_EQ(out, std::vector<std::uint8_t>(10, 7));
    }
  });
}

}  // namespace
}  // namespace casync::test
