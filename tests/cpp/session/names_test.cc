// When a name may be submitted again.
#include "session/names.hpp"

#include <gtest/gtest.h>

namespace casync {
namespace {

TEST(Names, AreTakenUntilTheProgramKnowsThatTheirOperationIsDone) {
  Names names;
  const std::uint32_t w = names.number_of("w"), b = names.number_of("b");
  EXPECT_EQ(names.number_of("w"), w);
  EXPECT_NE(w, b);
  Operation first, second;
  EXPECT_FALSE(names.taken(w, 0));
  EXPECT_EQ(names.take(w, first), 1u);
  EXPECT_TRUE(names.taken(w, 0));
  EXPECT_TRUE(names.taken(w, 1000 * Names::kUnasked)) << "it is not done";
  EXPECT_FALSE(names.taken(b, 0));
  first.done = true;
  EXPECT_TRUE(names.taken(w, Names::kUnasked - 1)) << "nobody has asked";
  names.release(w, first);
  EXPECT_FALSE(names.taken(w, 1));
  EXPECT_EQ(names.take(w, second), 2u);
  names.release(w, first);  // of an operation that the name no longer is of
  EXPECT_TRUE(names.taken(w, 1));
}

TEST(Names, AreFreeInTheEndThoughNobodyAsks) {
  Names names;
  const std::uint32_t w = names.number_of("w");
  Operation operation;
  operation.submitted = 5;
  names.take(w, operation);
  operation.done = true;
  EXPECT_TRUE(names.taken(w, 5 + Names::kUnasked - 1));
  EXPECT_FALSE(names.taken(w, 5 + Names::kUnasked));
}

TEST(Names, AreOutstandingAsLongAsTheirOperationRuns) {
  Names names;
  Operation operation;
  EXPECT_FALSE(names.outstanding("w"));
  names.take(names.number_of("w"), operation);
  EXPECT_TRUE(names.outstanding("w"));
  operation.done = true;
  EXPECT_FALSE(names.outstanding("w"));
}

}  // namespace
}  // namespace casync
