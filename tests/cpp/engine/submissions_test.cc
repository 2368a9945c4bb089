// Names, runs and their numbers.
#include "engine/submissions.hpp"

#include <gtest/gtest.h>

#include <string>

namespace casync {
namespace {

TEST(Submissions, CountTheRunsOfANameOverItsRegistrations) {
  Submissions submissions;
  submissions.define({"w", 0, {}, "one"});
  submissions.define({"w", 0, {}, "other"});  // on other terms
  const std::uint32_t first = submissions.submit(0, 7);
  const std::uint32_t second = submissions.submit(1, 8);
  EXPECT_EQ(submissions.run(first).sequence, 0U);
  EXPECT_EQ(submissions.run(second).sequence, 1U);
  EXPECT_EQ(submissions.find_run(0, 0), first);
  EXPECT_EQ(submissions.find_run(0, 1), second);
  EXPECT_FALSE(submissions.was_submitted(0, 2));
  EXPECT_EQ(submissions.outstanding(), 2U);
}

TEST(Submissions, ANumberIsUsedAgainAndStartsAfresh) {
  Submissions submissions;
  submissions.define({"w", 0, {}, "one"});
  const std::uint32_t first = submissions.submit(0, 7);
  submissions.run(first).begun = submissions.run(first).nonfinite = true;
  submissions.run(first).eager_bytes = 5;
  submissions.end(first);
  EXPECT_EQ(submissions.find_run(0, 0), Submissions::kNone);
  EXPECT_TRUE(submissions.was_submitted(0, 0));
  ASSERT_EQ(submissions.submit(0, 8), first);
  const Submissions::Run& again = submissions.run(first);
  EXPECT_TRUE(again.active && !again.begun && !again.nonfinite);
  EXPECT_EQ(again.eager_bytes, 0U);
  EXPECT_EQ(again.sequence, 1U);
}

TEST(Submissions, ANameThatWasForgottenGoesOnCounting) {
  Submissions submissions;
  for (std::uint32_t i = 0; i < 300; ++i) {
    submissions.define({"w" + std::to_string(i), 0, {}, "here"});
    submissions.end(submissions.submit(i, 7));
    submissions.hold(i);
    submissions.forget(i);
    EXPECT_EQ(submissions.find_name("w" + std::to_string(i)), i);  // an operation is of it
    submissions.let_go(i);
    EXPECT_EQ(submissions.find_name("w" + std::to_string(i)), Submissions::kNone);
  }
  EXPECT_EQ(submissions.find_registration(17), nullptr);
  submissions.skip("w18", 1);  // nothing is of it, so it is forgotten again
  EXPECT_EQ(submissions.find_name("w18"), Submissions::kNone);
  submissions.define({"w17", 0, {}, "here"});
  submissions.define({"w18", 0, {}, "here"});
  submissions.define({"new", 0, {}, "here"});
  EXPECT_EQ(submissions.run(submissions.submit(300, 7)).sequence, 1U);
  EXPECT_EQ(submissions.run(submissions.submit(301, 7)).sequence, 2U);
  EXPECT_EQ(submissions.run(submissions.submit(302, 7)).sequence, 0U);
}

}  // namespace
}  // namespace casync
