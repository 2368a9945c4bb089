// What a session forgets of a program that has ever new shapes and names, and what it does not.
#include <gtest/gtest.h>

#include <vector>

#include "casync/error.hpp"
#include "session/world.hpp"

namespace casync {
namespace {

constexpr std::uint32_t kMany = 2'500;  // more than a session keeps of definitions, which are more than operations

Signature gradient(std::int64_t rows, const char* codec = "none") {
  Signature signature;
  signature.shape = {rows, 1};
  signature.dims = std::to_string(rows);
  signature.compression = codec;
  return signature;
}

TEST(Forgotten, ATensorIsDefinedAgainAndGoesOn) {
  spawn(2, [](Session& session) {
    std::vector<float> values(kMany + 8, 1.0F);
    const auto first = session.define("first", gradient(8), "forgotten_test.cc");
    const auto often = session.define("often", gradient(8), "forgotten_test.cc");
    run(session, first, values.data(), values.data());
    for (std::uint32_t i = 0; i < kMany; ++i) {
      const auto shape = session.define("changing", gradient(9 + i), "forgotten_test.cc");
      ASSERT_EQ(session.define("changing", gradient(9 + i), "forgotten_test.cc"), shape);
      if (i % 5 == 0) run(session, shape, values.data(), values.data());
      if (i % 500 == 0) run(session, often, values.data(), values.data());
    }
    EXPECT_TRUE(session.knows(often));
    EXPECT_FALSE(session.knows(first));
    EXPECT_FALSE(session.use(first));
    EXPECT_THROW(session.submit(first, values.data(), values.data()), InvalidArgument);
    EXPECT_THROW(session.set_optimizer(first, 1, 0, false), InvalidArgument);
    const auto again = session.define("first", gradient(8), "forgotten_test.cc");
    EXPECT_NE(again, first);
    values[0] = static_cast<float>(session.rank());
    run(session, again, values.data(), values.data());
    EXPECT_EQ(values[0], 0.5F);
  });
}

TEST(Forgotten, WhatACodecKeepsStaysUnderItsName) {
  spawn(2, [](Session& session) {
    std::vector<float> values(6'000);
    const auto fill = [&] {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 2.5F;
    };
    const auto define = [&] { return session.define("w", gradient(6'000, "onebit"), "forgotten_test.cc"); };
    fill();
    run(session, define(), values.data(), values.data());
    const FloatArray before = session.residual("w");
    ASSERT_EQ(before.size(), values.size());
    std::vector<float> other(1);
    for (std::uint32_t i = 0; i < kMany; ++i) {
      const auto name = session.define("other" + std::to_string(i), gradient(1), "forgotten_test.cc");
      run(session, name, other.data(), other.data());
    }
    EXPECT_EQ(session.residual("w"), before);
    std::vector<float> sum = values;  // of both results, and of what is kept in the end
    fill();
    run(session, define(), values.data(), values.data());
    const FloatArray after = session.residual("w");
    const std::vector<float> result = values;
    fill();
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(sum[i] + result[i] + after[i], 2 * values[i], 1e-4) << i;  // both ranks gave the same
    EXPECT_EQ(session.state("w").steps, 2U);
  });
}

/// As an asynchronous loop over all parameters of a model does, or a group of operations.
TEST(Forgotten, ThousandsMayBeOutstanding) {
  spawn(2, [](Session& session) {
    std::vector<float> values(2 * kMany, static_cast<float>(session.rank()));
    std::vector<Session::Handle> handles;
    for (std::uint32_t i = 0; i < 2 * kMany; ++i) {
      const auto name = session.define("tensor" + std::to_string(i), gradient(1), "forgotten_test.cc");
      handles.push_back(session.submit(name, &values[i], &values[i]));
    }
    for (const Session::Handle handle : handles) {
      while (!session.wait(handle, 1'000'000'000)) {
      }
      ASSERT_TRUE(session.collect(handle));
    }
    EXPECT_EQ(values, std::vector<float>(2 * kMany, 0.5F));
    EXPECT_TRUE(session.knows(session.define("another", gradient(1), "forgotten_test.cc")));
  });
}

TEST(Forgotten, ThousandsMayBeDefinedBeforeTheFirstIsSubmitted) {
  spawn(1, [](Session& session) {
    std::vector<std::uint32_t> names;
    for (std::uint32_t i = 0; i < 2'000; ++i) {
      names.push_back(session.define("new" + std::to_string(i), gradient(1), "forgotten_test.cc"));
    }
    float value = 1;
    for (const std::uint32_t name : names) run(session, name, &value, &value);
  });
}

TEST(Forgotten, WhatIsOutstandingIsNot) {
  spawn(2, [](Session& session) {
    float value = 1;
    const auto waiting = session.define("waiting", gradient(1), "forgotten_test.cc");
    run(session, waiting, &value, &value);  // now it is known, and rank 0 begins at once
    const auto handle = session.rank() == 0 ? session.submit(waiting, &value, &value) : 0;
    float other = 0;
    for (std::uint32_t i = 0; i < kMany; ++i) {
      const auto name = session.define("other" + std::to_string(i), gradient(1), "forgotten_test.cc");
      if (i % 2 == 0) run(session, name, &other, &other);
    }
    EXPECT_EQ(session.knows(waiting), session.rank() == 0);
    if (session.rank() == 0) {
      while (!session.wait(handle, 1'000'000'000)) {
      }
      session.collect(handle);
    } else {
      run(session, session.define("waiting", gradient(1), "forgotten_test.cc"), &value, &value);
    }
    EXPECT_EQ(value, 1);
  });
}

}  // namespace
}  // namespace casync
